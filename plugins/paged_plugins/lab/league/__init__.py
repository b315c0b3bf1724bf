"""The league: every component of a slot against the default, on workloads on which it matters."""
