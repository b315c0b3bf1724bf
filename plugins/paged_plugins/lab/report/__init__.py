"""The report of results: one HTML file, or Markdown."""

from paged_plugins.lab.report.formats import write_html, write_markdown

__all__ = ["write_html", "write_markdown"]
