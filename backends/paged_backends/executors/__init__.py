"""Executors: they run the steps that schedulers plan, on a device or without a model."""
