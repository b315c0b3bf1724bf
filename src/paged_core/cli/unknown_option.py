"""Messages about options that a command does not have."""

from __future__ import annotations

import re
from collections.abc import Sequence

from typer import TyperException

from paged_core.cli.frame import dashed
from paged_core.cli.options import flag
from paged_core.plugins.registry import Registry
from paged_core.settings.errors import spelled_here

_EXTRA = re.compile(r"Got unexpected extra arguments?(?:\(s\))? \((\S+).*\)")


def explain(error: TyperException, args: Sequence[str], registry: Registry) -> str:
    """Return the message of a mistake in ``args``.

    About an unknown option it says what the option of another engine is called here, or else which
    are similar, and which plugins are left out; about a model that is no option, which one is.
    """
    message = error.format_message()
    extra = _EXTRA.match(message)
    if extra and args[:1] == ["serve"]:
        return f"{message}; write {flag(('model',))} {extra[1]}"
    if extra and (cut := next((word for word in args if _is_open(word)), None)):
        return f"{message}; the shell cut {cut!r:.80} at a space: quote it, as in '{{name: lru}}'"
    option = getattr(error, "option_name", None)
    if option is None or not message.startswith("No such option"):
        return message
    for word in args:  # of `-ngl` the error says `-n`
        name = dashed(word.partition("=")[0])
        if name.startswith(option) and (here := _spelled_here(name)):
            return f"No such option: {name}{here}"
    return "\n".join((message, *registry.notes))


def _is_open(word: str) -> bool:
    return any(word.count(begin) > word.count(end) for begin, end in ("{}", "[]"))


def _spelled_here(option: str) -> str:
    def spell(key: str) -> str:
        return flag(tuple(key.split(".")))

    return spelled_here(option.lstrip("-"), spell, "settings", "requests")
