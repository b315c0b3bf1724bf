"""The commands of the lab, and the options that they share."""
