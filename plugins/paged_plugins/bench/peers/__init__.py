"""Engines to compare with, one file each, and the process that runs them.

A peer may live in another virtual environment, where nothing else of ours is installed: modules of
this package import the standard library and each other, and a peer's own package when it is loaded.
"""
