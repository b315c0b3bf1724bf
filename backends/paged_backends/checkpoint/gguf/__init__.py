"""GGUF files: one file that holds the configuration, the tokenizer and the weights of a model."""
