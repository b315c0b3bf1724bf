"""Commands for setting up: what this machine can run, and a new plugin to start from."""
