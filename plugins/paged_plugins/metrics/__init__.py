"""What an engine did, for people and monitors: a log of steps, metrics, who owned which block."""
