"""Workloads: the requests that an engine receives, drawn, read from a file, or written by hand."""
