"""Where settings come from, how they are merged, and what is said when one is wrong."""
