"""Studies: their files, their arms and their settings."""
