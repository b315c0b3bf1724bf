"""Differences between the arms of a study, with their uncertainty, in numbers and as tables."""
