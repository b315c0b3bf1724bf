"""Components for paged-core, in a package of their own."""
