"""Cost models measured on a real engine."""
