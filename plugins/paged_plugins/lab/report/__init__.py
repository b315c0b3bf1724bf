"""The report of results: one HTML file, or Markdown."""

from paged_plugins.lab.report.html import write_html
from paged_plugins.lab.report.markdown import write_markdown

__all__ = ["write_html", "write_markdown"]
