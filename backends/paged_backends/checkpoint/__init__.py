"""A model's folder: its configuration, its weights, and what they are computed in and on."""
