"""Tokenizers, chat templates and detokenizers."""
