"""Parsers of answers: calls of tools, and reasoning content."""
