"""Errors of chat completions, under the names that the fields have in other APIs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from paged_core.errors import RequestError
from paged_plugins.server.errors import ApiError, as_api_error
from paged_plugins.server.openai.protocol import ChatRequest


@contextmanager
def renamed(names: Mapping[str, str]) -> Iterator[None]:
    """Have what is raised name the fields that were sent.

    Args:
        names: by the pattern of a field of chat completions, what is said in its place.
    """

    def of(text: str) -> str:
        for pattern, name in names.items():
            text = re.sub(rf"(?<![\w.]){pattern}(?!\w)", name, text)
        return text

    try:
        yield
    except (ApiError, RequestError) as error:
        found = as_api_error(error, ChatRequest.__struct_fields__)
        body = found.answer.error
        raise ApiError(
            found.status,
            of(body.message),
            param=None if body.param is None else of(body.param),
            code=body.code,
            retry_after=found.retry_after,
            headers=found.headers,
        ) from error
