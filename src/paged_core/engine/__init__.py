"""The engine: its step loop, the planner that schedulers ask, the driver, and their wiring."""
