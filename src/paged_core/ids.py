"""The numbers by which sequences and blocks are known on both sides of the executor."""

from __future__ import annotations

from array import array
from collections.abc import Hashable, Sequence
from hashlib import blake2b
from struct import pack
from typing import NewType


class BlockKey:
    """The tokens of one full block, chained to the key of the block before it.

    The hash covers the parent's hash, the block's tokens and ``extra`` (a cache salt,
    under which equal tokens have other keys and values), so a chain over a prompt costs one pass
    over its tokens. Equality never trusts the hash: it compares tokens up the two chains until they
    meet in the same object. Chains found equal share the parents of the left one (in a dictionary:
    of the stored key) from then on, so looking up a long chain block by block, first to last,
    compares each block twice, and not all blocks before it each time.

    A cache holds a key for each of its blocks, so tokens are packed: a tuple of numbers takes four
    times the memory.
    """

    __slots__ = ("_digest", "_hash", "_packed", "extra", "num_tokens", "parent")

    def __init__(
        self, parent: BlockKey | None, tokens: Sequence[int], extra: Hashable = None
    ) -> None:
        self.parent: BlockKey | None = parent
        self._packed = array("q", tokens).tobytes()
        self.extra = extra
        self.num_tokens: int = len(tokens) + (parent.num_tokens if parent else 0)
        self._hash: int = hash((parent and parent._hash, self._packed, extra))
        self._digest: int | None = None

    @property
    def tokens(self) -> tuple[int, ...]:
        """The tokens of the block."""
        return tuple(array("q", self._packed))

    @property
    def digest(self) -> int:
        """A number of 64 bits that is the same in every process, see :func:`content_digests`."""
        chain, key = list[BlockKey](), self
        while key._digest is None and key.parent is not None:
            chain.append(key)
            key = key.parent
        if key._digest is None:
            key._digest = _digest(_seed(key.extra), key.tokens)
        for below in reversed(chain):
            assert key._digest is not None
            below._digest = _digest(key._digest, below.tokens)
            key = below
        assert key._digest is not None
        return key._digest

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, BlockKey):
            return NotImplemented
        ours: BlockKey | None = self
        theirs: BlockKey | None = other
        while ours is not theirs:
            if (
                ours is None
                or theirs is None
                or ours._hash != theirs._hash
                or ours._packed != theirs._packed
                or ours.extra != theirs.extra
            ):
                return False
            ours, theirs = ours.parent, theirs.parent
        ours, theirs = self, other
        while ours is not theirs:
            assert ours is not None
            assert theirs is not None
            above = theirs.parent
            theirs.parent = ours.parent
            ours, theirs = ours.parent, above
        return True

    def __repr__(self) -> str:
        return f"BlockKey({self._hash & 0xFFFFFFFF:08x}, {len(self.tokens)} tokens)"


def extend_keys(
    keys: list[BlockKey], tokens: Sequence[int], block_size: int, extra: Hashable, count: int
) -> None:
    """Append keys to ``keys`` until it holds ``count`` of them.

    ``tokens`` must hold at least ``count * block_size`` tokens.
    """
    parent = keys[-1] if keys else None
    for start in range(len(keys) * block_size, count * block_size, block_size):
        parent = BlockKey(parent, tokens[start : start + block_size], extra)
        keys.append(parent)


def content_digests(tokens: Sequence[int], block_size: int, extra: Hashable = None) -> list[int]:
    """Return the :attr:`BlockKey.digest` of each full block of a prompt.

    That is the BLAKE2b hash, in 8 bytes and little-endian, of the digest of the block before (for
    the first: of ``extra`` as text, or 0 without it) and the tokens as int64.
    """
    digests, digest = list[int](), _seed(extra)
    for end in range(block_size, len(tokens) + 1, block_size):
        digest = _digest(digest, tokens[end - block_size : end])
        digests.append(digest)
    return digests


def _seed(extra: Hashable) -> int:
    if extra is None:
        return 0
    text = str(extra).encode("utf-8", "surrogatepass")
    return int.from_bytes(blake2b(text, digest_size=8).digest(), "little")


def _digest(before: int, tokens: Sequence[int]) -> int:
    content = pack(f"<Q{len(tokens)}q", before, *tokens)
    return int.from_bytes(blake2b(content, digest_size=8).digest(), "little")


SeqId = NewType("SeqId", int)
BlockId = NewType("BlockId", int)
