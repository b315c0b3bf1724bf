"""Makes a small trace of Mooncake's: one conversation in several, with shorter prompts and answers.

Usage: ``derive_trace.py conversation_trace.jsonl > mooncake.jsonl``, of the repository
kvcache-ai/Mooncake (Apache License 2.0), folder ``FAST25-release/traces``.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

CONVERSATIONS, TOKENS, BLOCK = 28, 16, 512
"""One of so many conversations is kept; prompts are so many times shorter; tokens of a block."""


def derived(lines: Iterable[str]) -> Iterator[str]:
    """Yield requests as the lab reads them. A conversation is what shares its second block."""
    size, numbers = BLOCK // TOKENS, dict[int, int]()
    for number, line in enumerate(lines):
        asked = json.loads(line)
        blocks = asked["hash_ids"]
        if blocks[min(1, len(blocks) - 1)] % CONVERSATIONS or not asked["output_length"]:
            continue
        parts = list[list[int]]()
        for start in (size * numbers.setdefault(each, len(numbers)) for each in blocks):
            if parts and parts[-1][1] == start:
                parts[-1][1] += size
            else:
                parts.append([start, start + size])
        last = asked["input_length"] - BLOCK * (len(blocks) - 1)
        parts[-1][1] -= size - -(-last // TOKENS)
        request = {
            "id": str(number),
            "at": asked["timestamp"] / 1000,
            "prompt": " ".join(f"{start}:{end}" for start, end in parts),
            "output": -(-asked["output_length"] // 4),
        }
        yield json.dumps(request, separators=(",", ":"))


if __name__ == "__main__":
    with Path(sys.argv[1]).open(encoding="utf-8") as trace:
        sys.stdout.writelines(f"{line}\n" for line in derived(trace))
