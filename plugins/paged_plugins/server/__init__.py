"""Serving: an HTTP server, and engines in processes of their own."""
