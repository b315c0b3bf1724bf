"""Messages of chat completions, made of what other APIs have in their place."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Literal

from paged_plugins.server.errors import refused
from paged_plugins.server.openai.protocol import FunctionCall, Message, ToolCall

Role = Literal["system", "developer", "user", "assistant"]


class Conversation:
    """Gathers messages: thoughts, text and calls that follow each other become one.

    What follows a call and is no result is a part of its message, since the results come next.
    """

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self._names: dict[str, str] = {}
        """Names of the functions called, by the ids of the calls."""

    def said(self, skipped: Collection[str]) -> list[Message]:
        """Return all messages.

        Args:
            skipped: kinds of parts that were sent, and are in none of them.

        Raises:
            ApiError: nothing else was sent.
        """
        if skipped and not self.messages:
            parts = ", ".join(skipped)
            raise refused(
                "messages",
                f"messages has nothing that the model can read: {parts} is skipped here; "
                "give at least one message with text",
            )
        return self.messages

    def say(self, role: Role, text: str) -> None:
        """Add text."""
        last = self._assistant() if role == "assistant" else None
        if last is not None and (last.content is None or last.tool_calls):
            last.content = f"{last.content or ''}{text}"
        else:
            self.messages.append(Message(role=role, content=text))

    def think(self, text: str) -> None:
        """Add thoughts of the assistant."""
        last = self._assistant()
        if last is not None and last.tool_calls:
            last.reasoning_content = f"{last.reasoning_content or ''}{text}"
        else:
            self.messages.append(Message(role="assistant", reasoning_content=text))

    def call(self, call_id: str, name: str, arguments: str) -> None:
        """Add a call of a function.

        Args:
            arguments: JSON.
        """
        last = self._assistant()
        if last is None:
            last = Message(role="assistant")
            self.messages.append(last)
        made = ToolCall(id=call_id, function=FunctionCall(name=name, arguments=arguments))
        last.tool_calls = [*(last.tool_calls or ()), made]
        self._names[call_id] = name

    def give_result(self, call_id: str, text: str) -> None:
        """Add what a call gave."""
        name = self._names.get(call_id)
        self.messages.append(Message(role="tool", content=text, tool_call_id=call_id, name=name))

    def _assistant(self) -> Message | None:
        """Return the last message, if the assistant's."""
        last = self.messages[-1] if self.messages else None
        return last if last is not None and last.role == "assistant" else None


def joined(texts: Iterable[str | None]) -> str:
    """Return the texts of the parts of a message as one, for templates that know no parts."""
    return "\n".join(text or "" for text in texts)
