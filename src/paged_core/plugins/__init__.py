"""Plugins: the registry of components, and the hooks that bring them."""
