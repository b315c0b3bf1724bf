"""``paged-core compare``: settings varied under one workload."""
