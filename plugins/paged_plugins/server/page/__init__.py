"""The page at ``/``: a chat, and the engine as it works."""
