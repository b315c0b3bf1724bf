"""What an answer says besides its text: calls of tools, and what a model thinks before it."""
