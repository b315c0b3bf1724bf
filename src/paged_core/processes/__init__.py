"""Child processes: how one is started, asked, watched, and ended with all that belongs to it."""
