"""One run of one engine on one workload, real or simulated, and the record of it."""
