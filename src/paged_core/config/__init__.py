"""Reads settings from all layers, merges them, and explains what is wrong with them."""
