"""An LLM inference engine made of swappable parts."""

from paged_core._version import __version__

__all__ = ["__version__"]
