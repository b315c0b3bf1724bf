"""What things cost: the command ``bench`` and what it measures with."""
