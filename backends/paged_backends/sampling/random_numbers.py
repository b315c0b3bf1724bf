"""Random numbers that depend on the sequence and the position of the token, and on nothing else.

Counter-based, after Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (SC 2011): there
is no generator whose state would depend on the schedule, the batch or preemptions. One number per
row and step is needed, so a cryptographic hash is fast enough, and its bits are as good as random.
"""

from __future__ import annotations

from hashlib import blake2b

from paged_backends.sampling.row import Row


def uniform(row: Row, engine_seed: int) -> float:
    """Return the number in [0, 1) that selects ``row``'s next token.

    It is a function of the request's seed (or else of the engine's seed and the request's id), of
    the sequence's index, and of the position to be filled.
    """
    return uniform_at(row, len(row.tokens), engine_seed)


def uniform_at(row: Row, position: int, engine_seed: int) -> float:
    """As :func:`uniform`, for the token at ``position``, whatever tokens are known yet."""
    seed = row.sampling.seed
    source = f"request:{seed}" if seed is not None else f"engine:{engine_seed}:{row.request_id}"
    key = f"{source}:{row.index}:{position}:0"
    digest = blake2b(key.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return (int.from_bytes(digest, "little") >> 11) * 2.0**-53
