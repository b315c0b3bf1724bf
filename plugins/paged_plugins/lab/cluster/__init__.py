"""A cluster: replicas of one engine behind a router, simulated in one process or in several."""
