"""The cost models that are shipped."""
