"""The commands of the lab, a module each."""
