"""Search: which combination of settings serves an objective best, and which settings matter."""
