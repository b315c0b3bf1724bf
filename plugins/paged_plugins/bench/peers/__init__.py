"""Engines to compare with, one file each, and the process that runs them.

A peer may run in another virtual environment, where paged_core is not installed: modules of this
package import the standard library and each other, and a peer's own package when it is loaded.
"""
