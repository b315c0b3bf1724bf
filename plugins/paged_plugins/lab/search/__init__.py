"""Search for the combination of settings that serves an objective best."""
