"""Our own decoder for the common model families, described by configuration."""
