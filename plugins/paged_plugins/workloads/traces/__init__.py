"""Workloads in files: requests line by line, and the formats of public traces."""
