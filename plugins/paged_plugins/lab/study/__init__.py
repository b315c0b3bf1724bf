"""What a study runs: its file, its arms and their settings."""
