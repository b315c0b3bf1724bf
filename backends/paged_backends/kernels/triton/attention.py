"""Attention over a paged cache: keys in tiles with a running softmax.

The softmax (Milakov and Gimelshein, "Online normalizer calculation for softmax"; Dao,
"FlashAttention-2") is in powers of two. A row is a query of one of the heads that share the key
head, so that a key is read once for all of them. ``DOT`` is the type of what is multiplied: that of
the layer, but float32 under the interpreter, which computes with the bits of bfloat16 as integers.

Sequences that decode one token: their keys are split among programs, whose results are merged by a
second launch (Dao et al., "Flash-Decoding"). A sequence is cut into at most ``num_splits`` parts of
whole tiles of keys, none shorter than ``least_tiles``, which is read on the device, so that it can
suit each replay of a captured step; the programs of splits that a sequence does not have return at
once.

Chunks of any length, many sequences in one launch: a program computes one tile of one sequence for
one key head. There are at most ``rows // ROWS + sequences`` tiles of all sequences together; a
program finds its sequence by counting. So no grid depends on anything that only the device knows.

Shapes: R rows, N keys of a tile, D head_dim padded to a power of two, P splits, C of them at once.
"""

# ruff: noqa: N803, N806 - the shape of an array is the upper-case end of its name
from __future__ import annotations

import triton
import triton.language as tl

from paged_backends.kernels.triton.cache import decode, power_of_two

LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def _block_ids(table, first, end, BLOCK_SIZE: tl.constexpr, KEYS: tl.constexpr):
    """Return the block ids of the keys from ``first``: one if all are in one block, else [N]."""
    if BLOCK_SIZE % KEYS == 0:
        # a tile begins at a multiple of KEYS, and so ends in the block in which it begins
        ids = tl.load(table + first // BLOCK_SIZE, first < end, 0)
    else:
        position_N = first + tl.arange(0, KEYS)
        ids = tl.load(table + position_N // BLOCK_SIZE, position_N < end, 0)
    return ids.to(tl.int64)


@triton.jit
def _load_tile(
    key_N, offset_N, is_there_N, DOT: tl.constexpr, KV_HEADS: tl.constexpr,
    HEAD_SIZE: tl.constexpr, HEAD_DIM: tl.constexpr, DIM: tl.constexpr, FLOAT8: tl.constexpr,
    NATIVE: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Return keys and values [N, D], zeros where there are none.

    ``key_N`` points to the keys of a head in the block of each, or of all.
    """
    dims_D = tl.arange(0, DIM)
    place_ND = key_N + (offset_N * HEAD_DIM)[:, None] + dims_D[None, :]
    if MASKED or DIM != HEAD_DIM:
        mask_ND = is_there_N[:, None] & (dims_D < HEAD_DIM)[None, :]
        key_ND = tl.load(place_ND, mask_ND, 0)
        value_ND = tl.load(place_ND + KV_HEADS * HEAD_SIZE, mask_ND, 0)
    else:
        key_ND = tl.load(place_ND)
        value_ND = tl.load(place_ND + KV_HEADS * HEAD_SIZE)
    if FLOAT8:
        key_ND = decode(key_ND, DOT, NATIVE)
        value_ND = decode(value_ND, DOT, NATIVE)
    return key_ND, value_ND


@triton.jit
def _scores(
    score_RN, position_R, position_N, slope_R, scale, soft_cap, window,
    HAS_WINDOW: tl.constexpr, HAS_CAP: tl.constexpr, HAS_SLOPES: tl.constexpr,
    MASKED: tl.constexpr,
):  # fmt: skip
    """Return scores of products, minus infinity for keys that a query does not see, and the factor,
    above 0, that makes them powers of two."""
    if HAS_CAP:
        # tanh, of a power that may be infinite
        score_RN = 1.0 - 2.0 / (1.0 + tl.exp2(score_RN * (2.0 * LOG2_E * scale / soft_cap)))
        scale = soft_cap
    if HAS_SLOPES:
        distance_RN = position_N.to(tl.float32)[None, :] - position_R.to(tl.float32)[:, None]
        score_RN = tl.fma(score_RN, scale, slope_R[:, None] * distance_RN)
        scale = 1.0
    if MASKED:
        is_seen_RN = position_N[None, :] <= position_R[:, None]
        if HAS_WINDOW:
            is_seen_RN &= position_N[None, :] > (position_R - window)[:, None]
        score_RN = tl.where(is_seen_RN, score_RN, float("-inf"))
    return score_RN, scale * LOG2_E


@triton.jit
def attend_keys(
    query_RD, position_R, slope_R, base_R, total_R, out_RD,
    cache_head, table, begin, end, scale, soft_cap, window,
    KV_HEADS: tl.constexpr, BLOCK_SIZE: tl.constexpr, HEAD_SIZE: tl.constexpr,
    HEAD_DIM: tl.constexpr, DIM: tl.constexpr, KEYS: tl.constexpr, HAS_WINDOW: tl.constexpr,
    HAS_CAP: tl.constexpr, HAS_SLOPES: tl.constexpr, FLOAT8: tl.constexpr, NATIVE: tl.constexpr,
    DOT: tl.constexpr, SIGN: tl.constexpr, SLACK: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Continue the softmax over the keys ``begin .. end``.

    Args:
        position_R: of the queries; a query sees keys up to its own position.
        base_R: of the exponents: weights are ``2^(score - base)``; minus infinity at first.
        total_R: the sum of weights so far.
        out_RD: the weighted sum of values so far.
        cache_head: points to the keys of the head in block 0.
        table: points to the block table of the sequence.
        scale: above 0.
        begin: a multiple of ``KEYS``.
        SIGN: multiplies the queries.
        SLACK: by how much a score may exceed the base of its row. Only then the base becomes the
            greatest score, and only if that is so in any row the sums are multiplied. It is a row
            that decides, since with ``deterministic`` its bits depend on no other.
        MASKED: whether ``end`` is no multiple of ``KEYS``, or some query does not see all keys.

    Returns:
        The three states.
    """
    query_RD = query_RD.to(DOT)
    if SIGN != 1:
        query_RD = query_RD * SIGN
    ids = _block_ids(table, begin, end, BLOCK_SIZE, KEYS)
    for first in range(begin, end, KEYS):
        position_N = first + tl.arange(0, KEYS)
        is_there_N = position_N < end
        if BLOCK_SIZE % KEYS == 0:
            offset_N = first % BLOCK_SIZE + tl.arange(0, KEYS)
            key_N = cache_head + ids * (2 * KV_HEADS * HEAD_SIZE)
            head_N = key_N
        else:
            offset_N = position_N % BLOCK_SIZE
            key_N = cache_head + ids * (2 * KV_HEADS * HEAD_SIZE)
            head_N = key_N[:, None]
        # read a tile ahead, since the addresses of the next keys depend on it
        ids = _block_ids(table, first + KEYS, end, BLOCK_SIZE, KEYS)
        if FLOAT8:
            # before the products, so that these hide how long it takes
            scales_N = key_N + BLOCK_SIZE * HEAD_DIM + offset_N
            key_byte_N = tl.load(scales_N, is_there_N, 127)
            value_byte_N = tl.load(scales_N + KV_HEADS * HEAD_SIZE, is_there_N, 127)
        key_ND, value_ND = _load_tile(
            head_N, offset_N, is_there_N, DOT, KV_HEADS,
            HEAD_SIZE, HEAD_DIM, DIM, FLOAT8, NATIVE, MASKED,
        )  # fmt: skip
        product_RN = tl.dot(query_RD, tl.trans(key_ND.to(DOT)), input_precision="ieee")
        if FLOAT8:
            product_RN *= power_of_two(key_byte_N)[None, :]
        score_RN, factor = _scores(
            product_RN, position_R, position_N, slope_R, scale, soft_cap, window,
            HAS_WINDOW, HAS_CAP, HAS_SLOPES, MASKED,
        )  # fmt: skip
        top_R = tl.maximum(base_R, tl.max(score_RN, 1) * factor)
        if SLACK:
            top_R = tl.where(top_R > base_R + SLACK, top_R, base_R)
            has_risen = tl.max((top_R > base_R).to(tl.int32), 0) > 0
        else:
            has_risen = True
        shift_R = tl.where(top_R == float("-inf"), 0.0, top_R)
        if has_risen:
            shrunk_R = tl.exp2(base_R - shift_R)
            total_R *= shrunk_R
            out_RD *= shrunk_R[:, None]
        base_R = top_R
        weight_RN = tl.exp2(tl.fma(score_RN, factor, -shift_R[:, None]))
        total_R += tl.sum(weight_RN, 1)
        if FLOAT8:
            scale_N = power_of_two(value_byte_N)
            if DOT == tl.float16:  # noqa: SIM300 - it is no constant of Python
                # a small scale would leave few bits of a weight in its range
                value_ND = (value_ND * scale_N[:, None]).to(DOT)
            else:
                weight_RN *= scale_N[None, :]
        weight_RN = weight_RN.to(DOT)
        out_RD = tl.dot(weight_RN, value_ND.to(DOT), out_RD, input_precision="ieee")
    return base_R, total_R, out_RD


@triton.jit
def _tiles_of(
    length, window, num_splits, least_tiles, KEYS: tl.constexpr, HAS_WINDOW: tl.constexpr,
):  # fmt: skip
    """Return the first tile of keys that the last token sees, how many there are, and how many of
    them are in a split."""
    first = tl.full([], 0, tl.int32)
    if HAS_WINDOW:
        first = tl.maximum(length - window, 0) // KEYS
    count = (length + KEYS - 1) // KEYS - first
    return first, count, tl.maximum((count + num_splits - 1) // num_splits, least_tiles)


@triton.jit(
    do_not_specialize=["table_width", "num_splits", "window"],
    do_not_specialize_on_alignment=["query_start", "seq_lens", "block_tables", "slopes", "sinks"],
)
def attend_splits(
    query, cache, out, parts, states, query_start, seq_lens, block_tables, slopes, sinks,
    least_tiles,
    query_token, query_head, table_width, num_splits, scale, soft_cap, window,
    GROUP: tl.constexpr, KV_HEADS: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    HEAD_SIZE: tl.constexpr, HEAD_DIM: tl.constexpr, DIM: tl.constexpr, ROWS: tl.constexpr,
    KEYS: tl.constexpr, HAS_WINDOW: tl.constexpr,
    HAS_CAP: tl.constexpr, HAS_SLOPES: tl.constexpr, HAS_SINKS: tl.constexpr,
    FLOAT8: tl.constexpr, NATIVE: tl.constexpr, DOT: tl.constexpr, SIGN: tl.constexpr,
    HAS_SPLITS: tl.constexpr,
):  # fmt: skip
    """Attend with the query of each sequence that has one new token, one split of its keys.

    Args:
        out: [T, heads, HEAD_DIM], written if there is one split.
        parts: float32 [S, heads, num_splits, HEAD_DIM], written otherwise.
        states: float32 [2, S, heads, num_splits]: the greatest score and the sum of weights.
        least_tiles: [1]: tiles of a split at least.

    Grid: (S, KV_HEADS, num_splits).
    """
    sequence, kv_head, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    start = tl.load(query_start + sequence)
    num_tokens = tl.load(query_start + sequence + 1) - start
    length = tl.load(seq_lens + sequence)
    first, count, tiles = _tiles_of(
        length, window, num_splits, tl.load(least_tiles), KEYS, HAS_WINDOW
    )
    if num_tokens == 1 and split * tiles < count:
        row_R = tl.arange(0, ROWS)
        dims_D = tl.arange(0, DIM)
        head_R = (kv_head * GROUP + row_R).to(tl.int64)
        mask_RD = (row_R < GROUP)[:, None] & (dims_D < HEAD_DIM)[None, :]
        place_R = start.to(tl.int64) * query_token + head_R * query_head
        query_RD = tl.load(query + place_R[:, None] + dims_D[None, :], mask_RD, 0.0)
        slope_R = tl.full([ROWS], 0.0, tl.float32)
        if HAS_SLOPES:
            slope_R = tl.load(slopes + head_R, row_R < GROUP, 0.0)
        begin = (first + split * tiles) * KEYS
        base_R, total_R, out_RD = attend_keys(
            query_RD, tl.full([ROWS], 0, tl.int32) + (length - 1), slope_R,
            tl.full([ROWS], float("-inf"), tl.float32), tl.full([ROWS], 0.0, tl.float32),
            tl.full([ROWS, DIM], 0.0, tl.float32),
            cache + kv_head * HEAD_SIZE, block_tables + sequence.to(tl.int64) * table_width,
            begin, tl.minimum(begin + tiles * KEYS, length), scale, soft_cap, window,
            KV_HEADS, BLOCK_SIZE, HEAD_SIZE, HEAD_DIM, DIM, KEYS, HAS_WINDOW, HAS_CAP,
            HAS_SLOPES, FLOAT8, NATIVE, DOT, SIGN, SLACK=0, MASKED=True,
        )  # fmt: skip
        HEADS: tl.constexpr = KV_HEADS * GROUP
        if HAS_SPLITS:
            index_R = (sequence.to(tl.int64) * HEADS + head_R) * num_splits + split
            num_states = tl.num_programs(0).to(tl.int64) * HEADS * num_splits
            tl.store(states + index_R, base_R, row_R < GROUP)
            tl.store(states + num_states + index_R, total_R, row_R < GROUP)
            tl.store(parts + (index_R * HEAD_DIM)[:, None] + dims_D[None, :], out_RD, mask_RD)
        else:
            if HAS_SINKS:
                sink_R = tl.load(sinks + head_R, row_R < GROUP, 0.0)
                total_R += tl.exp2(tl.fma(sink_R, LOG2_E, -base_R))
            place_R = (start.to(tl.int64) * HEADS + head_R) * HEAD_DIM
            result_RD = (out_RD / total_R[:, None]).to(out.dtype.element_ty)
            tl.store(out + place_R[:, None] + dims_D[None, :], result_RD, mask_RD)


@triton.jit(
    do_not_specialize=["num_splits", "window"],
    do_not_specialize_on_alignment=["query_start", "seq_lens", "sinks"],
)
def merge_splits(
    out, parts, states, query_start, seq_lens, least_tiles, sinks, num_splits, window,
    HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, DIM: tl.constexpr, SPLITS: tl.constexpr,
    CHUNK: tl.constexpr, KEYS: tl.constexpr, HAS_WINDOW: tl.constexpr, HAS_SINKS: tl.constexpr,
):  # fmt: skip
    """Merge the splits of one head of one sequence, ``CHUNK`` at a time.

    ``SPLITS`` is a power of two, ``num_splits`` or more. Grid: (S, HEADS).
    """
    sequence, head = tl.program_id(0), tl.program_id(1)
    start = tl.load(query_start + sequence)
    num_tokens = tl.load(query_start + sequence + 1) - start
    length = tl.load(seq_lens + sequence)
    _, count, tiles = _tiles_of(length, window, num_splits, tl.load(least_tiles), KEYS, HAS_WINDOW)
    if num_tokens == 1 and count > 0:
        used = (count + tiles - 1) // tiles
        index = (sequence.to(tl.int64) * HEADS + head) * num_splits
        num_states = tl.num_programs(0).to(tl.int64) * HEADS * num_splits
        splits_P = tl.arange(0, SPLITS)
        greatest_P = tl.load(states + index + splits_P, splits_P < used, float("-inf"))
        total_P = tl.load(states + num_states + index + splits_P, splits_P < used, 0.0)
        top = tl.max(greatest_P, 0)
        total = tl.sum(total_P * tl.exp2(greatest_P - top), 0)
        if HAS_SINKS:
            total += tl.exp2(tl.fma(tl.load(sinks + head), LOG2_E, -top))
        dims_D = tl.arange(0, DIM)
        out_D = tl.zeros([DIM], tl.float32)
        for first in range(0, used, CHUNK):
            split_C = first + tl.arange(0, CHUNK)
            greatest_C = tl.load(states + index + split_C, split_C < used, float("-inf"))
            mask_CD = (split_C < used)[:, None] & (dims_D < HEAD_DIM)[None, :]
            place_C = (index + split_C) * HEAD_DIM
            part_CD = tl.load(parts + place_C[:, None] + dims_D[None, :], mask_CD, 0.0)
            out_D += tl.sum(part_CD * tl.exp2(greatest_C - top)[:, None], 0)
        place = (start.to(tl.int64) * HEADS + head) * HEAD_DIM
        tl.store(out + place + dims_D, (out_D / total).to(out.dtype.element_ty), dims_D < HEAD_DIM)


_SEARCHED_AT_ONCE = tl.constexpr(256)


@triton.jit
def _find_sequence(query_start, tile, num_sequences, GROUP: tl.constexpr, ROWS: tl.constexpr):
    """Return the last sequence whose first tile is not after ``tile``."""
    found = tl.full([], -1, tl.int32)
    for first in range(0, num_sequences, _SEARCHED_AT_ONCE):
        sequence_N = first + tl.arange(0, _SEARCHED_AT_ONCE)
        is_there_N = sequence_N < num_sequences
        start_N = tl.load(query_start + sequence_N, is_there_N, 0)
        is_before_N = start_N * GROUP // ROWS + sequence_N <= tile
        found += tl.sum((is_before_N & is_there_N).to(tl.int32), 0)
    return found


@triton.jit(
    do_not_specialize=["table_width", "num_sequences", "least_tokens", "window"],
    do_not_specialize_on_alignment=["query_start", "seq_lens", "block_tables", "slopes", "sinks"],
)
def attend_tiles(
    query, cache, out, query_start, seq_lens, block_tables, slopes, sinks,
    query_token, query_head, table_width, num_sequences, least_tokens,
    scale, soft_cap, window,
    GROUP: tl.constexpr, KV_HEADS: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    HEAD_SIZE: tl.constexpr, HEAD_DIM: tl.constexpr, DIM: tl.constexpr,
    ROWS: tl.constexpr, KEYS: tl.constexpr, HAS_WINDOW: tl.constexpr, HAS_CAP: tl.constexpr,
    HAS_SLOPES: tl.constexpr, HAS_SINKS: tl.constexpr, FLOAT8: tl.constexpr,
    NATIVE: tl.constexpr, DOT: tl.constexpr, SIGN: tl.constexpr, SLACK: tl.constexpr,
):  # fmt: skip
    """Attend with the queries [T, heads, HEAD_DIM], whose strides are given, into ``out``.

    Args:
        least_tokens: sequences that have fewer new tokens are left out.

    Grid: (rows of a head // ROWS + num_sequences, KV_HEADS).
    """
    # the last tiles of a sequence see the most keys: they begin first
    tile = tl.num_programs(0) - 1 - tl.program_id(0)
    kv_head = tl.program_id(1)
    sequence = _find_sequence(query_start, tile, num_sequences, GROUP, ROWS)
    start = tl.load(query_start + sequence)
    num_tokens = tl.load(query_start + sequence + 1) - start
    length = tl.load(seq_lens + sequence)
    first_row = (tile - (start * GROUP // ROWS + sequence)) * ROWS
    num_rows = num_tokens * GROUP
    if num_tokens >= least_tokens and first_row < num_rows and length > 0:
        row_R = first_row + tl.arange(0, ROWS)
        dims_D = tl.arange(0, DIM)
        token_R = (start + row_R // GROUP).to(tl.int64)
        head_R = (kv_head * GROUP + row_R % GROUP).to(tl.int64)
        mask_RD = (row_R < num_rows)[:, None] & (dims_D < HEAD_DIM)[None, :]
        place_R = token_R * query_token + head_R * query_head
        query_RD = tl.load(query + place_R[:, None] + dims_D[None, :], mask_RD, 0.0)
        slope_R = tl.full([ROWS], 0.0, tl.float32)
        if HAS_SLOPES:
            slope_R = tl.load(slopes + head_R, row_R < num_rows, 0.0)

        num_cached = length - num_tokens
        position_R = num_cached + row_R // GROUP
        first_position = num_cached + first_row // GROUP
        last_position = num_cached + (tl.minimum(first_row + ROWS, num_rows) - 1) // GROUP
        base_R = tl.full([ROWS], float("-inf"), tl.float32)
        total_R = tl.full([ROWS], 0.0, tl.float32)
        out_RD = tl.full([ROWS, DIM], 0.0, tl.float32)
        cache_head = cache + kv_head * HEAD_SIZE
        table = block_tables + sequence.to(tl.int64) * table_width
        if HAS_WINDOW:
            begin = tl.maximum(first_position + 1 - window, 0) // KEYS * KEYS
        else:
            # all queries of the tile see these keys
            begin = (first_position + 1) // KEYS * KEYS
            base_R, total_R, out_RD = attend_keys(
                query_RD, position_R, slope_R, base_R, total_R, out_RD,
                cache_head, table, tl.full([], 0, tl.int32), begin, scale, soft_cap, window,
                KV_HEADS, BLOCK_SIZE, HEAD_SIZE, HEAD_DIM, DIM, KEYS, HAS_WINDOW, HAS_CAP,
                HAS_SLOPES, FLOAT8, NATIVE, DOT, SIGN, SLACK, MASKED=False,
            )  # fmt: skip
        base_R, total_R, out_RD = attend_keys(
            query_RD, position_R, slope_R, base_R, total_R, out_RD,
            cache_head, table, begin, last_position + 1, scale, soft_cap, window,
            KV_HEADS, BLOCK_SIZE, HEAD_SIZE, HEAD_DIM, DIM, KEYS, HAS_WINDOW, HAS_CAP,
            HAS_SLOPES, FLOAT8, NATIVE, DOT, SIGN, SLACK, MASKED=True,
        )  # fmt: skip
        if HAS_SINKS:
            sink_R = tl.load(sinks + head_R, row_R < num_rows, 0.0)
            total_R += tl.exp2(tl.fma(sink_R, LOG2_E, -base_R))
        place_R = (token_R * (KV_HEADS * GROUP) + head_R) * HEAD_DIM
        result_RD = (out_RD / total_R[:, None]).to(out.dtype.element_ty)
        tl.store(out + place_R[:, None] + dims_D[None, :], result_RD, mask_RD)
