"""Components whose answers are checked before the core acts on them, and whose names errors give."""
