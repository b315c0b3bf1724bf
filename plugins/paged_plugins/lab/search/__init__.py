"""Search: the combination of settings that serves an objective best, and the settings that matter."""
