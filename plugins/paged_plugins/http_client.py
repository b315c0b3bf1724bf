"""A client of HTTP servers that stream: thousands of answers at once, each as it comes.

HTTP/1.1 (RFC 9112), one connection for each request, and server-sent events (WHATWG HTML, section
9.2), no more than a server of models needs. Its cost per event is small, so that what it measures
is the server's time.
"""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any
from urllib.parse import urlsplit

from paged_core.errors import PagedCoreError, SettingsError

_MOST_LINE = 1 << 24
"""Bytes of a line at most: an event with log-probabilities of a whole vocabulary is one line."""
_MOST_ERROR = 1 << 16


def fastest_loop() -> Any:
    """Return what makes the fastest event loop of this platform; ``None``: Python's own."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


class ServerError(PagedCoreError):
    """The server could not be reached, answered with an error, or broke off its answer.

    ``status`` is that of the answer; 0: there was none.
    """

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


class HttpClient:
    """Asks one server.

    Args:
        url: ``http://HOST:PORT``; what is behind it begins every path, but for the ``/v1`` with
            which OpenAI's clients want it.
        api_key: sent as a bearer token.

    Raises:
        SettingsError: it is no such URL.
    """

    def __init__(self, url: str, *, api_key: str | None = None) -> None:
        parts = urlsplit(url if "//" in url else f"http://{url}")
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise SettingsError(f"{url!r:.80} is no URL of a server; write http://HOST:PORT")
        try:
            port = parts.port
        except ValueError:
            raise SettingsError(f"{url!r:.80} has no port that can be") from None
        self._host, self._path = parts.hostname, parts.path.rstrip("/").removesuffix("/v1")
        self.url = f"{parts.scheme}://{parts.netloc}{self._path}"
        self._ssl = ssl.create_default_context() if parts.scheme == "https" else None
        self._port = port or (443 if self._ssl else 80)
        self._headers = f"Host: {parts.netloc}\r\nUser-Agent: paged-core\r\nConnection: close\r\n"
        if api_key is not None:
            self._headers += f"Authorization: Bearer {api_key}\r\n"

    async def get(self, path: str) -> Any:
        """Return what JSON the server answers.

        Raises:
            ServerError: it could not be had.
        """
        return await self._whole("GET", path, None)

    async def post(self, path: str, body: Mapping[str, Any]) -> Any:
        """The same for a request with a body."""
        return await self._whole("POST", path, body)

    async def events(self, path: str, body: Mapping[str, Any]) -> AsyncGenerator[str, None]:
        """Yield the data of each event that answers a request, and what is no event whole.

        Close the iterator to hang up before the end.

        Raises:
            ServerError: there was no answer, or no whole one.
        """
        async with self._answer("POST", path, body) as answer:
            if not answer.type.startswith("text/event-stream"):
                yield (await answer.read()).decode("utf-8", "replace")
                return
            data: list[bytes] = []
            rest = b""
            async for part in answer.parts():
                *lines, rest = (rest + part).split(b"\n")
                for line in lines:
                    if line.startswith(b"data:"):
                        data.append(line[5:].removeprefix(b" ").removesuffix(b"\r"))
                    elif data and line in {b"", b"\r"}:
                        yield b"\n".join(data).decode("utf-8", "replace")
                        data.clear()

    async def _whole(self, method: str, path: str, body: Mapping[str, Any] | None) -> Any:
        async with self._answer(method, path, body) as answer:
            content = await answer.read()
        try:
            return json.loads(content)
        except ValueError:
            raise ServerError(f"{self.url}{path} did not answer with JSON", answer.status) from None

    @asynccontextmanager
    async def _answer(
        self, method: str, path: str, body: Mapping[str, Any] | None
    ) -> AsyncIterator[_Answer]:
        content = b"" if body is None else json.dumps(body).encode()
        head = f"{method} {self._path}{path} HTTP/1.1\r\n{self._headers}"
        if body is not None:
            head += f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n"
        try:
            reader, writer = await asyncio.open_connection(
                self._host, self._port, ssl=self._ssl, limit=_MOST_LINE
            )
        except OSError as error:
            why = error.strerror or type(error).__name__
            raise ServerError(
                f"{self.url} cannot be reached: {why}; is a server running there?"
            ) from error
        try:
            with suppress(ConnectionError):  # it may have answered and hung up already
                writer.write(head.encode("latin-1") + b"\r\n" + content)
                await writer.drain()
            answer = await _read_head(reader)
            if answer.status != 200:
                raise ServerError(_reason(await answer.read(_MOST_ERROR)), answer.status)
            yield answer
        except (OSError, EOFError, ValueError) as error:
            raise ServerError(f"{self.url} broke off its answer: {error}") from error
        finally:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()


class _Answer:
    """An answer whose head was read."""

    def __init__(
        self, status: int, headers: Mapping[str, str], reader: asyncio.StreamReader
    ) -> None:
        self.status = status
        self.type = headers.get("content-type", "")
        self._is_chunked = headers.get("transfer-encoding", "").lower() == "chunked"
        self._length = int(headers["content-length"]) if "content-length" in headers else None
        self._reader = reader

    async def read(self, most: int | None = None) -> bytes:
        """Return the body, or the beginning of it."""
        parts: list[bytes] = []
        size = 0
        async for part in self.parts():
            parts.append(part)
            size += len(part)
            if most is not None and size >= most:
                break
        return b"".join(parts)

    async def parts(self) -> AsyncIterator[bytes]:
        """Yield the body as it comes."""
        reader = self._reader
        if not self._is_chunked:
            left = self._length
            while left is None or left > 0:
                part = await reader.read(1 << 16 if left is None else min(left, 1 << 16))
                if not part:
                    if left:
                        raise EOFError(f"{left} bytes are missing")
                    return
                left = left if left is None else left - len(part)
                yield part
            return
        chunks = _Chunks()
        while not chunks.have_ended:
            data = await reader.read(1 << 16)
            if not data:
                raise EOFError("it ends within its chunks")
            if part := chunks.take(data):
                yield part


class _Chunks:
    """Takes a body of chunks (RFC 9112, section 7.1) apart, all that has come at once."""

    def __init__(self) -> None:
        self.have_ended = False
        self._data = bytearray()
        self._in_trailers = False

    def take(self, new: bytes) -> bytes:
        """Add what came; return what is in the chunks that it makes whole.

        Raises:
            ValueError: these are no chunks, or one is too large.
        """
        data, at = self._data, 0
        data += new
        found: list[bytes] = []
        while (end := data.find(b"\r\n", at)) >= 0:
            if self._in_trailers:
                self.have_ended, at = self.have_ended or end == at, end + 2
                continue
            size = int(data[at:end].split(b";")[0], 16)
            if not 0 <= size <= _MOST_LINE:
                raise ValueError(f"a chunk has {size} bytes")
            if not size:
                self._in_trailers, at = True, end + 2
                continue
            if len(data) < end + size + 4:
                break
            found.append(bytes(data[end + 2 : end + 2 + size]))
            at = end + size + 4
        del data[:at]
        if len(data) > 2 * _MOST_LINE:
            raise ValueError("the size of a chunk has no end")
        return b"".join(found)


async def _read_head(reader: asyncio.StreamReader) -> _Answer:
    line = (await reader.readuntil(b"\r\n")).decode("latin-1")
    version, _, status = line.partition(" ")
    if not version.startswith("HTTP/1."):
        raise ValueError(f"{line[:40]!r} is no answer of HTTP/1.1")
    headers: dict[str, str] = {}
    while (line := (await reader.readuntil(b"\r\n")).decode("latin-1").strip()) != "":
        name, _, value = line.partition(":")
        headers[name.lower()] = value.strip()
    return _Answer(int(status[:3]), headers, reader)


def _reason(content: bytes) -> str:
    """Return the message of an error, as servers write it."""
    text = content.decode("utf-8", "replace")
    with suppress(ValueError, AttributeError):
        found = json.loads(text)
        error = found.get("error", found)
        return str(error if isinstance(error, str) else error.get("message", text))
    return text.strip()[:500] or "the server answered with an error, and did not say why"
