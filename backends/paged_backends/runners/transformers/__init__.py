"""The runner for models of the transformers library."""
