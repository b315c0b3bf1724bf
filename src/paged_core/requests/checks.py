"""Refuses requests that an engine can never serve, with the reason."""

from __future__ import annotations

import pickle

from paged_core.cache.kv_cache import KVCache
from paged_core.errors import RequestError
from paged_core.interfaces.executor import Capacity
from paged_core.request import Request
from paged_core.sampling_params import SamplingParams, processor_name
from paged_core.sequence import StopCheck


def check_request(
    request: Request,
    stop_check: StopCheck | None,
    *,
    capacity: Capacity,
    kv_cache: KVCache,
    max_num_seqs: int | None,
    max_length: int,
) -> None:
    """Compare a request with the capacity of an engine.

    Args:
        max_num_seqs: sequences that may run at once.
        max_length: tokens at which a sequence of this request ends at the latest.

    Raises:
        RequestError: it can never be served; the message says why.
    """
    name, length = f"request {request.id!r}", len(request.prompt)
    if not length:
        raise RequestError(f"{name} has an empty prompt; it needs at least one token")
    if stop_check is not None and request.sampling.beam_width is not None:
        raise RequestError(
            f"{name} has a stop check, but beams end at tokens only; use stop_token_ids"
        )
    if request.least_length > capacity.max_model_len:
        raise RequestError(
            f"{name} has a prompt of {length} tokens, which leaves no room to generate within "
            f"max_model_len={capacity.max_model_len}; shorten it"
        )
    if request.sampling.bad_words or request.sampling.truncate_prompt_tokens == -1:
        raise RequestError(
            f"{name} has bad_words or truncate_prompt_tokens=-1, of which only LLM knows the token "
            "ids and the number; use bad_words_ids and the number"
        )
    if request.sampling.structured_outputs is not None and not capacity.grammars:
        raise RequestError(
            f"{name} has structured_outputs, and its executor holds no output to a form; use "
            "executor local or process"
        )
    if capacity.vocab_size is not None:
        _check_token_ids(request, capacity.vocab_size)
    if capacity.remote:
        _check_picklable(request)
    problem = run_problem(request, kv_cache, max_num_seqs, max_length)
    if problem := problem or size_problem(length, kv_cache, max_length):
        raise RequestError(f"{name} can never run: {problem}")


def size_problem(length: int, kv_cache: KVCache, max_length: int) -> str | None:
    """Say that a prompt takes more blocks than there are, or return ``None``."""
    needed = kv_cache.blocks_to_start(length, max_length)
    if needed <= kv_cache.num_blocks:
        return None
    return (
        f"its prompt of {length} tokens takes {needed} blocks of {kv_cache.block_size}, and the "
        f"cache has {kv_cache.num_blocks}; raise num_blocks or kv_cache_memory"
    )


def run_problem(
    request: Request, kv_cache: KVCache, max_num_seqs: int | None, max_length: int
) -> str | None:
    """Say why a scheduler would let a request wait for ever, or return ``None``.

    It has more sequences than may run at once, or can never have the run of blocks that the
    allocator would reserve for it, of which schedulers, which count blocks, know nothing.
    """
    sampling = request.sampling
    if max_num_seqs is not None and sampling.width > max_num_seqs:
        return (
            f"it asks for {_width_name(sampling)}={sampling.width} sequences, more than may run at "
            f"once (scheduler.max_num_seqs={max_num_seqs})"
        )
    if not kv_cache.reserves_runs:
        return None
    if sampling.width > 1:
        name = _width_name(sampling)
        return (
            f"it asks for {name}={sampling.width}, and the block allocator keeps each sequence in "
            f"a run of its own, which none can share; use {name}=1 or another allocator"
        )
    needed = kv_cache.blocks_to_start(len(request.prompt), max_length)
    if needed <= kv_cache.num_blocks:
        return None
    return (
        f"the block allocator reserves {needed} adjacent blocks for it, and the cache has "
        f"{kv_cache.num_blocks}; lower max_model_len, or raise num_blocks or kv_cache_memory"
    )


def _check_token_ids(request: Request, vocab_size: int) -> None:
    name, sampling = f"request {request.id!r}", request.sampling
    for what, tokens in (
        (f"{name} has", request.prompt),
        (f"logit_bias of {name} names", sampling.logit_bias),
        (f"stop_token_ids of {name} names", sampling.stop_token_ids),
        (f"allowed_token_ids of {name} names", sampling.allowed_token_ids or ()),
        *((f"bad_words_ids of {name} names", tokens) for tokens in sampling.bad_words_ids),
    ):
        wrong = [token for token in tokens if not 0 <= token < vocab_size]
        if wrong:
            raise RequestError(
                f"{what} token id {wrong[0]}, which is outside the model's vocabulary "
                f"(0 to {vocab_size - 1})"
            )


def _check_picklable(request: Request) -> None:
    for processor in request.sampling.logits_processors:
        try:
            is_importable = b"__main__" not in pickle.dumps(processor)
        except Exception as error:
            raise RequestError(
                f"request {request.id!r} has the logits processor {processor_name(processor)}, "
                "which cannot be pickled for the process that runs the model "
                f"({type(error).__name__}: {error}); define it at module level, as a function or a "
                "class, and give it picklable attributes only"
            ) from error
        if not is_importable:
            raise RequestError(
                f"request {request.id!r} has the logits processor {processor_name(processor)}, "
                "which is defined in the program that was started, where the process that runs the "
                "model cannot import it; define it in a module"
            )


def _width_name(sampling: SamplingParams) -> str:
    """Return the parameter that ``sampling.width`` is the value of."""
    names = ("beam_width", "best_of", "n")
    return next(name for name in names if getattr(sampling, name) is not None)
