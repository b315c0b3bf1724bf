"""The results of a study: as objects, and as a folder."""
