"""The runner that takes any model of the transformers library."""
