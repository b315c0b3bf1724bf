"""An HTTP server for engines."""
