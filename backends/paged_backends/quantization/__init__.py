"""Weights of linear layers in 8 or 4 bits, one scale for a group of them, cached on disk."""
