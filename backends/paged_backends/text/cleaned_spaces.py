"""Spaces that ``transformers`` removes from decoded text (``clean_up_tokenization_spaces``)."""

from __future__ import annotations

from paged_backends.text.windowed_detokenizer import MAX_HELD

_REMOVED = (" .", " ?", " !", " ,", " ' ", " n't", " 'm", " 's", " 've", " 're")


def clean_up(text: str) -> str:
    """Return a text as ``transformers`` cleans it."""
    for found in _REMOVED:
        text = text.replace(found, found.strip())
    return text


def reach_of_clean(reach: int | None) -> int | None:
    """Return the reach of a decoder whose text is cleaned up; see :class:`WindowedDetokenizer`."""
    if reach is None:
        return None
    return max(reach, MAX_HELD) + sum(len(found) - 1 for found in _REMOVED)
