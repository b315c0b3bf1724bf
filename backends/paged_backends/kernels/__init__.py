"""Compiled kernels: a folder for each language, and the cache of libraries that they share."""
