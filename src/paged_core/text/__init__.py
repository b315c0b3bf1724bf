"""Prompts in, text out."""
