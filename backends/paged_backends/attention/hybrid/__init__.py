"""Component ``hybrid``: two attention components over one cache."""
