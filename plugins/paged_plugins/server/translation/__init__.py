"""Common parts of APIs that are translations onto chat completions."""
