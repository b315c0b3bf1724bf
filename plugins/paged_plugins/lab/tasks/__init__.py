"""Runs of studies: the pool of workers that does them, here or in processes."""
