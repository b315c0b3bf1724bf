"""Loads and caches as fractions: of the rate that an engine can serve, of the blocks it can use."""
