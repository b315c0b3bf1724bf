"""A decoder of our own: the common families of models, described by configuration."""
