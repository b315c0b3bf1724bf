"""What APIs that are translations onto chat completions have in common."""
