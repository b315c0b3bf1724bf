"""Runs of GPU engines that were measured, beside simulations of the same runs."""
