"""Outputs that are held to a form: what compiles it, and the masks of a step."""
