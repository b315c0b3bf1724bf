"""Ablations: arms, the runs that they need, and the folder that keeps the results."""
