"""Runs to be done: here, on several cores, or on a cluster."""
