"""The pictures of a report: each answers one question, and is one SVG drawing for a phone's width."""
