"""Guided decoding: grammars compiled beside the steps, and the masks of a step."""
