"""The blocks that the requests of a scenario will look up in the prefix cache."""

from __future__ import annotations

from collections.abc import Iterable

from paged_core.block_key import BlockKey, extend_keys
from paged_core.interfaces.future import Future
from paged_core.request import Request


def foresee(requests: Iterable[Request], block_size: int) -> Future:
    """Return the future in which these requests look up their prompts once each, in this order.

    Generated tokens are left out: their blocks are published, and not looked up. The last token of
    a prompt is always computed, so a block that ends with it is not looked up either.
    """
    return Future(_asked(request, block_size) for request in requests)


def _asked(request: Request, block_size: int) -> list[int]:
    keys: list[BlockKey] = []
    count = (len(request.prompt) - 1) // block_size
    extend_keys(keys, request.prompt, block_size, request.key_extra, count)
    return [hash(key) for key in keys]
