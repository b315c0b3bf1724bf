"""The report of results: one HTML file, or Markdown."""

from paged_plugins.lab.report.formats import html, markdown, write_html, write_markdown
from paged_plugins.lab.report.pictures.drawing import drawing

__all__ = ["drawing", "html", "markdown", "write_html", "write_markdown"]
