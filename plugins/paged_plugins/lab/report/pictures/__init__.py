"""The pictures of a report: SVG drawings for a phone's width, each of which answers a question."""
