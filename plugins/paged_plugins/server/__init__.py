"""The plugin ``server``: engines as a service over HTTP."""
