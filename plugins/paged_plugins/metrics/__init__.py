"""Observers for people and monitors: a log of steps, metrics, the owners of blocks."""
