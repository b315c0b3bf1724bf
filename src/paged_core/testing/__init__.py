"""Helpers for the tests of components (extra: ``paged-core[testing]``)."""
