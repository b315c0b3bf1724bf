"""Requests on their way: what is refused, prefixes that stay, several sequences for one prompt."""
