"""The command ``bench``: measures what the engine and its parts cost."""
