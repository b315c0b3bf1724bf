"""Replicas: several engines behind one router, simulated or real."""
