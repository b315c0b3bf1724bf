"""``paged-core chat``: a conversation in the terminal, with any server of OpenAI's protocol."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import aclosing, suppress
from typing import Annotated, Any

import typer

from paged_core.cli import FAILED, OK
from paged_core.cli.options import SettingsArgs
from paged_core.cli.output import echo
from paged_core.errors import PagedCoreError, SettingsError
from paged_core.terminal import printable
from paged_plugins.command_options import refuse_settings
from paged_plugins.http_client import HttpClient, ServerError

HELP = """\
/settings            show what is sent with each message
/set NAME VALUE      change it: temperature, max_tokens, top_p, seed, stop, ...; no VALUE: forget it
/system TEXT         tell the model how to behave; no TEXT: nothing
/retry               answer the last message again
/undo                forget the last message and its answer
/clear               start a new conversation
/quit                end (also Ctrl-D); Ctrl-C stops an answer"""


def command(
    given: SettingsArgs,
    url: Annotated[str, typer.Argument(help="Of the server.")] = "http://127.0.0.1:8000",
    model: Annotated[str | None, typer.Option(help="What to talk to; the first one.")] = None,
    system: Annotated[str | None, typer.Option(help="How the model is to behave.")] = None,
    temperature: Annotated[float | None, typer.Option(min=0, help="0: the best token.")] = None,
    max_tokens: Annotated[int | None, typer.Option(min=1, help="Of an answer.")] = None,
) -> int:
    """Talk to a model that is served.

    Answers stream as they come. /help lists what else can be typed. Where standard input is no
    terminal, each of its lines is a message. A key is taken from OPENAI_API_KEY.
    """
    refuse_settings(given, "the server has its own settings; give them to `paged-core serve`")
    client = HttpClient(url, api_key=os.environ.get("OPENAI_API_KEY"))

    async def asked() -> Any:
        await _wait_while_it_starts(client)
        return await client.get("/v1/models")

    try:
        models = asyncio.run(asked())
    except ServerError as error:
        remedy = {
            0: "; start one with `paged-core serve`, or name its URL",
            401: "; set OPENAI_API_KEY",
        }
        raise SettingsError(f"{error}{remedy.get(error.status, '')}") from None
    settings = {"temperature": temperature, "max_tokens": max_tokens}
    chat = Chat(
        client,
        model or str(models["data"][0]["id"]),
        system=system,
        settings={name: value for name, value in settings.items() if value is not None},
    )
    return chat.run(_lines(chat.model))


_POLL_SECONDS = 0.5


async def _wait_while_it_starts(client: HttpClient) -> None:
    """Wait while the server says that its engine is loaded, again too; others say no such thing."""
    is_said = False
    with suppress(ServerError, AttributeError):
        while (await client.get("/health")).get("state") in ("starting", "restarting"):
            if not is_said:
                echo("the engine is being loaded; Ctrl-C ends the wait", err=True)
            is_said = True
            await asyncio.sleep(_POLL_SECONDS)


class Chat:
    """One conversation, and what is sent with each message."""

    def __init__(
        self, client: HttpClient, model: str, *, system: str | None, settings: dict[str, Any]
    ) -> None:
        self.model, self.settings, self.system = model, settings, system
        self.messages: list[dict[str, str]] = []
        self._client = client

    def run(self, lines: Iterator[str]) -> int:
        """Answer line after line; return the exit status."""
        status = OK
        for line in lines:
            text = line.strip()
            if not text:
                continue
            if text.startswith("/"):
                name, _, rest = text[1:].partition(" ")
                if name in {"quit", "exit", "q"}:
                    break
                if not self._obey(name, rest.strip()):
                    continue
            else:
                self.messages.append({"role": "user", "content": text})
            status = self._answer()
        return status

    def _answer(self) -> int:
        """Print the answer to the last message, as it comes; keep it."""
        said: list[str] = []

        async def stream() -> None:
            await _wait_while_it_starts(self._client)
            async with aclosing(self._pieces()) as pieces:
                async for piece, is_answer in pieces:
                    if is_answer:
                        said.append(piece)
                    sys.stdout.write(printable(piece))
                    sys.stdout.flush()

        try:
            asyncio.run(stream())
        except KeyboardInterrupt:
            if not sys.stdin.isatty():
                raise
        except PagedCoreError as error:
            echo(f"{chr(10) if said else ''}error: {error}", err=True)
            if not said:
                self.messages.pop()  # it may be sent again, or changed
            return FAILED
        sys.stdout.write("\n")
        self.messages.append({"role": "assistant", "content": "".join(said)})
        return OK

    async def _pieces(self) -> AsyncGenerator[tuple[str, bool], None]:
        """Yield what the model thinks and says, and whether it says it."""
        system = [{"role": "system", "content": self.system}] if self.system else []
        body: Mapping[str, Any] = {
            "model": self.model,
            "messages": [*system, *self.messages],
            "stream": True,
            **self.settings,
        }
        async with aclosing(self._client.events("/v1/chat/completions", body)) as events:
            async for data in events:
                if data == "[DONE]":
                    return
                event = json.loads(data)
                if "error" in event:
                    raise ServerError(str(event["error"].get("message", event["error"])))
                for choice in event.get("choices", ()):
                    delta = choice.get("delta", {})
                    for name in ("reasoning_content", "content"):
                        if text := delta.get(name):
                            yield text, name == "content"
        raise ServerError("the answer was broken off")

    def _obey(self, name: str, rest: str) -> bool:
        """Do what a line with a slash asks; whether the last message is to be answered."""
        match name:
            case "settings":
                shown = {"model": self.model, "system": self.system, **self.settings}
                for key, value in shown.items():
                    echo(f"{key}: {json.dumps(value, ensure_ascii=False)}")
            case "set":
                self._set(rest)
            case "system":
                self.system = rest or None
            case "clear":
                self.messages.clear()
            case "undo":
                self._forget_answer()
                del self.messages[-1:]
            case "retry":
                self._forget_answer()
                if self.messages:
                    return True
                echo("there is no message to answer again", err=True)
            case "help":
                echo(HELP)
            case _:
                echo(f"there is no /{name}; /help lists what there is", err=True)
        return False

    def _forget_answer(self) -> None:
        if self.messages and self.messages[-1]["role"] == "assistant":
            self.messages.pop()

    def _set(self, rest: str) -> None:
        name, _, value = rest.partition(" ")
        if not name:
            echo("write /set NAME VALUE", err=True)
        elif not value:
            self.settings.pop(name, None)
        else:
            try:
                self.settings[name] = json.loads(value)
            except ValueError:
                self.settings[name] = value


def _lines(model: str) -> Iterator[str]:
    """Yield what is typed, or piped in."""
    if not sys.stdin.isatty():
        yield from sys.stdin
        return
    with suppress(ImportError):
        import readline  # noqa: F401 - edits lines, and remembers them
    echo(f"{model}; /help lists what can be typed")
    while True:
        try:
            yield input("> ")
        except EOFError:
            echo("")
            return
        except KeyboardInterrupt:
            echo("\n/quit or Ctrl-D ends")
