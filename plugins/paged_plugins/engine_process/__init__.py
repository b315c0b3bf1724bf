"""An engine in a process of its own, and the client that starts, watches and asks it."""
