"""The server ``http``: connections, what is in front of all routes, and its own routes."""
