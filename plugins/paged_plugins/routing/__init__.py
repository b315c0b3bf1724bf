"""The slot ``router`` and its components: which of several engines serves a request."""
