"""Component ``flash_attn``: the packages that have flash attention over paged caches."""
