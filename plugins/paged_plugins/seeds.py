"""Seeds of parts that draw for themselves."""

from __future__ import annotations

from hashlib import blake2b


def derived_seed(seed: int, part: str, number: int) -> int:
    """Return the seed of one of several parts: ``seed`` itself of number 0, for others a digest.

    Args:
        part: sets parts of one kind apart from others.
    """
    if not number:
        return seed
    digest = blake2b(f"{seed} {part} {number}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1
