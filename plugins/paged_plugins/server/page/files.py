"""The files of the page, and what a browser is told of them."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response

FOLDER = Path(__file__).parent / "static"
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",  # a browser asks whether its copy is still this one
}


class PageFile:
    """One file, read once."""

    def __init__(self, path: Path) -> None:
        self._content = path.read_bytes()
        self._headers = {
            **HEADERS,
            "Content-Type": TYPES[path.suffix],
            "ETag": f'"{sha256(self._content).hexdigest()[:32]}"',
        }

    async def answer(self, request: Request) -> Response:
        """Answer with the file, or say that the browser's copy is the same."""
        if self._headers["ETag"] in request.headers.get("If-None-Match", ""):
            return Response(status_code=304, headers=self._headers)
        return Response(self._content, headers=self._headers)


def page_files() -> dict[str, PageFile]:
    """Return the files of the page, by their names."""
    return {path.name: PageFile(path) for path in sorted(FOLDER.iterdir()) if path.suffix in TYPES}
