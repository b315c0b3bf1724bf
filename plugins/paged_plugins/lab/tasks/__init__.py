"""Runs of studies: the pool of workers that does them, here, in processes, or on a Ray cluster."""
