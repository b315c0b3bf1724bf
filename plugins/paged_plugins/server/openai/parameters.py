"""From the fields of a request to what an engine is given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import uuid4

from paged_core.sampling_params import SamplingParams
from paged_core.text.outputs import TokenTexts
from paged_core.text.prompts import Prompt
from paged_plugins.server.errors import refused
from paged_plugins.server.openai.protocol import Generated
from paged_plugins.server.service import Service
from paged_plugins.server.settings import HttpSettings

_SAMPLING = (
    "n",
    "temperature",
    "top_p",
    "presence_penalty",
    "frequency_penalty",
    "logit_bias",
    "seed",
    "stop",
    "top_k",
    "min_p",
    "repetition_penalty",
    "best_of",
    "beam_width",
    "length_penalty",
    "early_stopping",
    "allowed_token_ids",
    "bad_words",
    "stop_token_ids",
    "include_stop_str_in_output",
    "ignore_eos",
    "min_tokens",
    "skip_special_tokens",
    "truncate_prompt_tokens",
    "prompt_logprobs",
)
"""Fields that sampling parameters have under the same name."""


def sampling_params(
    body: Generated,
    options: HttpSettings,
    *,
    max_tokens: int | None,
    logprobs: int | None,
    **changes: Any,
) -> SamplingParams:
    """Return what a request asks for; over HTTP the temperature is 1 unless it says another.

    Args:
        max_tokens: ``None``: as many as the model's length allows.
        changes: what takes the place of the request's own values.

    Raises:
        ApiError, RequestError: a value is out of range, or contradicts another one.
    """
    given = {name: value for name in _SAMPLING if (value := getattr(body, name)) is not None}
    if body.use_beam_search:
        given.setdefault("beam_width", given.get("n", 1))
    if "beam_width" not in given:
        given.setdefault("temperature", 1.0)
    _check_logprobs("logprobs" if hasattr(body, "prompt") else "top_logprobs", logprobs, options)
    _check_logprobs("prompt_logprobs", body.prompt_logprobs, options)
    if body.stream:
        for name in ("best_of", "beam_width", "use_beam_search", "prompt_logprobs"):
            if (value := getattr(body, name)) is not None and value is not False:
                raise refused(name, f"{name} has nothing to stream; leave out stream or {name}")
    elif body.stream_options is not None:
        raise refused("stream_options", "stream_options are for a stream; set stream to true")
    if body.deadline is not None and not body.deadline > 0:
        raise refused("deadline", f"deadline must be more than 0 seconds, not {body.deadline}")
    if body.best_of == 1 and given.get("n", 1) == 1:
        del given["best_of"]  # what OpenAI's older clients send
    return SamplingParams(max_tokens=max_tokens, logprobs=logprobs, **given | changes)


def _check_logprobs(name: str, value: int | None, options: HttpSettings) -> None:
    most = options.max_logprobs
    if value is None or (value >= -1 if most == -1 else 0 <= value <= most):
        return
    allowed = (
        "at least 0, or -1 for all" if most == -1 else f"from 0 to {most} (server.max_logprobs)"
    )
    raise refused(name, f"{name} must be {allowed}, not {value}")


def request_fields(body: Generated) -> Mapping[str, Any]:
    """Return the fields of the engine's request."""
    return {
        "priority": body.priority or 0,
        "cache_salt": body.cache_salt,
        "tenant": body.user or "",
        "session": body.prompt_cache_key or "",
    }


def answer_id(body: Generated, prefix: str) -> str:
    """Return the id of an answer, by which it can be aborted.

    Raises:
        ApiError: the client's own is too long.
    """
    if body.request_id is None:
        return f"{prefix}{uuid4().hex}"
    if not 0 < len(body.request_id) <= 128:
        raise refused("request_id", "request_id must have from 1 to 128 characters")
    return f"{prefix}{body.request_id}"


def prompts_of(prompt: str | list[Any], *, special: bool | None) -> list[Prompt]:
    """Return one or several prompts: text, token ids, or a list of either.

    Args:
        special: whether special tokens are put around a text.

    Raises:
        ApiError: it is something else.
    """
    if isinstance(prompt, str) or (prompt and all(type(each) is int for each in prompt)):
        prompts: Sequence[Any] = [prompt]
    else:
        prompts = prompt
    if not prompts:
        raise refused("prompt", "prompt is empty; give a text or token ids")
    options = {} if special is None else {"add_special_tokens": special}
    made: list[Prompt] = []
    for each in prompts:
        if isinstance(each, str):
            made.append({"prompt": each, **options} if each and options else each)
        elif isinstance(each, list) and all(type(token) is int for token in each):
            made.append(each)
        else:
            raise refused("prompt", "prompt must be a text, token ids, or a list of either")
    if any(not each for each in made):
        raise refused("prompt", "prompt is empty; it needs at least one token")
    return made


def cut_prompts(
    service: Service, body: Generated, prompts: Sequence[Prompt], sampling: SamplingParams
) -> Sequence[Prompt]:
    """Return prompts, or the token ids at their beginnings, if it is the ends that are left out.

    Raises:
        RequestError: a prompt is none.
    """
    limit = sampling.truncate_prompt_tokens
    if limit is None or body.truncation_side != "right":
        return prompts
    front_end = service.front_end
    most = front_end.max_model_len - 1 if limit == -1 else limit
    return [front_end.encode(prompt, sampling)[1][:most] for prompt in prompts]


def check_choices(sampling: SamplingParams, num_prompts: int, options: HttpSettings) -> None:
    """Refuse a request for more sequences than the server lets one have.

    Raises:
        ApiError: it asks for them.
    """
    if num_prompts * sampling.width > options.max_choices:
        name = "n" if sampling.width > 1 else "prompt"
        raise refused(
            name,
            f"{num_prompts} prompts with {sampling.width} sequences each are more than the "
            f"{options.max_choices} that a request may have (server.max_choices)",
        )


def token_texts(service: Service, body: Generated) -> Mapping[int, str] | None:
    """Return the texts of tokens for log-probabilities; ``None``: they are written as ids."""
    tokenizer = service.client.front_end.tokenizer
    if tokenizer is None or body.return_tokens_as_token_ids:
        return None
    return TokenTexts(tokenizer)
