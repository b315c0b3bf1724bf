"""Where an error was raised, for messages of one line."""

from __future__ import annotations

from traceback import walk_tb

_OURS = {"paged_core", "paged_testing", "paged_policies", "paged_backends", "paged_plugins"}


def raised_at(error: BaseException) -> str:
    """Return the innermost place outside of these packages where an error passed, or else the
    innermost one: `` (FILE, line LINE, in FUNCTION)``; empty if it has none.
    """
    frames = [(frame, line) for frame, line in walk_tb(error.__traceback__)]
    others = [
        (frame, line)
        for frame, line in frames
        if str(frame.f_globals.get("__name__")).partition(".")[0] not in _OURS
    ]
    if not frames:
        return ""
    frame, line = (others or frames)[-1]
    code = frame.f_code
    return f" ({code.co_filename}, line {line}, in {code.co_qualname})"
