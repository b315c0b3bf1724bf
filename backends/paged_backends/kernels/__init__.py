"""Compiled kernels: a folder for each language, and the library cache that they share."""
