"""The server ``http``: connections, what is in front of every route, and the server's own routes."""
