"""A hook of MkDocs: references in docstrings, such as :class:`~paged_core.LLM`, become code."""

from __future__ import annotations

import re
from typing import Any

_ROLE = re.compile(r":(?:attr|class|func|meth|mod):<code>~?(?:[\w.]+\.(?=[A-Z]))?([\w.]+)</code>")


def on_page_content(html: str, **_: Any) -> str:
    """Show a reference as the name that it refers to."""
    return _ROLE.sub(r"<code>\1</code>", html)
