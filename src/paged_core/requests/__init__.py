"""Checks of requests, pinned prefixes, and requests for several sequences."""
