"""Which replica of a simulated cluster serves a request."""
