"""Answers of components, checked before the core acts on them; the names that errors give."""
