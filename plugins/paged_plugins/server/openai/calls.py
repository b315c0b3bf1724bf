"""Calls of tools as they grow: their arguments are JSON whatever the model wrote."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from uuid import uuid4

from paged_plugins.server.openai.protocol import CalledFunction, MadeToolCall
from paged_plugins.server.parsers.json_text import JsonText
from paged_plugins.server.parsers.tool_parser import Arguments, CallBegins, Piece


class GrowingCalls:
    """Calls of one answer.

    What is passed on of arguments, joined, is an object when the next piece of the answer comes,
    or its end. What cannot be made one is text from there on.

    Args:
        most: calls that the answer may have; further ones are dropped.
        only: functions that may be called; calls of others are dropped.
    """

    def __init__(self, most: int | None = None, only: Collection[str] | None = None) -> None:
        self._most, self._only = most, only
        self._is_dropped = False
        """True while a call is read that the answer may not have."""
        self.count = 0
        self.is_open = False
        """True once the answer has ended within a call."""
        self._arguments: JsonText | None = None
        """Arguments that grow; ``None``: no call does."""

    def take(self, pieces: Sequence[Piece], *, has_ended: bool) -> tuple[list[MadeToolCall], str]:
        """Return what calls gained, one entry for each, and the text beside them."""
        made: dict[int, MadeToolCall] = {}
        texts: list[str] = []
        for piece in pieces:
            if isinstance(piece, CallBegins):
                self._end(made)
                is_one_too_many = self._most is not None and self.count >= self._most
                is_other = self._only is not None and piece.name not in self._only
                self._is_dropped = is_one_too_many or is_other
                if not self._is_dropped:
                    self._begin(made, piece.name)
            elif isinstance(piece, Arguments):
                if not self._is_dropped:
                    texts.append(self._grow(made, piece.text))
            else:
                self._end(made)
                texts.append(piece.text)
        if has_ended:
            self.is_open = self._arguments is not None and not self._arguments.done
            self._end(made)
        return list(made.values()), "".join(texts)

    def _begin(self, made: dict[int, MadeToolCall], name: str) -> None:
        whole = name.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        made[self.count] = MadeToolCall(
            function=CalledFunction(name=whole, arguments=""),
            index=self.count,
            id=f"call_{uuid4().hex[:24]}",
            type="function",
        )
        self.count += 1
        self._arguments = JsonText(is_object=True)

    def _grow(self, made: dict[int, MadeToolCall], written: str) -> str:
        """Add to the arguments of the call that began last; return what is no part of them."""
        arguments = self._arguments
        if arguments is None:
            return written
        before = arguments.num_taken
        try:
            end = arguments.take(written, 0)
        except ValueError:
            end = arguments.num_taken - before
        self._gain(made, arguments.written())
        if end == len(written):
            return ""
        self._end(made)
        return written[end:]

    def _end(self, made: dict[int, MadeToolCall]) -> None:
        if self._arguments is not None:
            self._arguments.close()
            self._gain(made, self._arguments.written())
            self._arguments = None

    def _gain(self, made: dict[int, MadeToolCall], text: str) -> None:
        if text:
            place = self.count - 1
            function = CalledFunction(arguments="")
            call = made.setdefault(place, MadeToolCall(function=function, index=place))
            call.function.arguments = (call.function.arguments or "") + text
