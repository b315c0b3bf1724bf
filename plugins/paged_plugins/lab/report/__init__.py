"""The report of results: one HTML file, or Markdown."""

from paged_plugins.lab.report.drawing import drawing
from paged_plugins.lab.report.formats import html, markdown, write_html, write_markdown

__all__ = ["drawing", "html", "markdown", "write_html", "write_markdown"]
