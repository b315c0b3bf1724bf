"""Parts for paged-core that are published apart from it."""
