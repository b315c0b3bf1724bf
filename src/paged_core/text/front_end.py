"""The front end of engines: prompts, conversations and parameters become requests.

The token ids of a prompt are found in bounded time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import count
from typing import Any

from paged_core.errors import RequestError
from paged_core.field_rules import (
    Rule,
    entries,
    flag,
    instance,
    listed,
    optional,
    refusal,
    shown,
    text,
    token_ids,
)
from paged_core.interfaces.executor import Executor, SupportsSamplingDefaults
from paged_core.interfaces.tokenizer import Tokenizer
from paged_core.log import get_logger
from paged_core.request import PRIORITY, Request
from paged_core.sampling_params import SamplingParams
from paged_core.text.generation import Generation

Prompt = str | Sequence[int] | Mapping[str, Any]
"""Text, token ids, ``{"prompt": text}`` or ``{"prompt_token_ids": [...]}``; with
``"add_special_tokens": False`` text has the special tokens already, with ``True`` it gets them
whatever it begins with; left out, a text that begins with its first one gets no second."""

_KEYS = frozenset({"prompt", "prompt_token_ids", "add_special_tokens"})

CHARACTERS_PER_TOKEN = 4
"""About as many as a token of ordinary text has."""
_SLACK = 64
"""Tokens at the end of a part that may become fewer with what follows."""

_CHANCE = {"temperature", "top_k", "top_p", "min_p"}
_SAMPLING = instance(SamplingParams, "SamplingParams(...), one for all prompts or one for each")
_CHAT_RULES: Mapping[str, Rule] = {
    "tools": listed(lambda tool: isinstance(tool, Mapping), "a list of JSON schemas of functions"),
    "add_generation_prompt": flag,
    "continue_final_message": flag,
    "chat_template": optional(text),
}
_RESERVED = {*_CHAT_RULES, "messages", "conversation", "tokenize", "self"}
"""Names that a template's own options cannot have."""
_template_options = optional(instance(Mapping, "a mapping of names to values"))

_log = get_logger()


class FrontEnd:
    """Checks and tokenises what users give, and makes requests of it.

    It knows a model's tokenizer and length and no engine, so it can be in another process than the
    engine, or in front of several. It is used by one thread at a time.

    Args:
        tokenizer: ``None``: only token ids are served.
        max_model_len: tokens that a sequence may have.
        name: of what serves, for errors: ``model 'demo' on executor 'memory'``.
        defaults: sampling parameters that the model comes with.
    """

    def __init__(
        self,
        tokenizer: Tokenizer | None,
        *,
        max_model_len: int,
        name: str,
        defaults: Mapping[str, Any] | None = None,
    ) -> None:
        self.tokenizer = tokenizer
        self.defaults = defaults or {}
        self.max_model_len = max_model_len
        self._name = name
        self._numbers = count()
        self._warned: set[str] = set()

    def need_tokenizer(self, what: str) -> Tokenizer:
        """Return the tokenizer.

        Raises:
            RequestError: there is none, and ``what`` needs one.
        """
        if self.tokenizer is None:
            raise RequestError(
                f"{what} needs a tokenizer, and {self._name} has none; give token ids, or set "
                "`tokenizer`"
            )
        return self.tokenizer

    # ------------------------------------------------------------------ prompts

    def batch(
        self, prompts: Prompt | Sequence[Prompt], sampling_params: Any = None, priority: Any = None
    ) -> list[tuple[Prompt, SamplingParams, int]]:
        """Return one or several prompts, each with its parameters and priority.

        Args:
            sampling_params: one for all, or one for each; ``None``: the default.
            priority: the same.

        Raises:
            RequestError: they are none, or there are more or fewer of them than prompts.
        """
        listed_prompts = _as_list(prompts)
        number = len(listed_prompts)
        asked = self.sampling(None) if sampling_params is None else sampling_params
        sampling = _per_prompt("sampling_params", asked, number, _SAMPLING)
        priorities = _per_prompt("priority", 0 if priority is None else priority, number, PRIORITY)
        return list(zip(listed_prompts, sampling, priorities, strict=True))

    def chat_prompts(
        self,
        messages: Sequence[Mapping[str, Any]] | Sequence[Sequence[Mapping[str, Any]]],
        *,
        add_generation_prompt: bool | None = None,
        continue_final_message: bool = False,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> list[Prompt]:
        """Return the prompt that the chat template makes of each conversation.

        Args:
            messages: one conversation, or several.
            add_generation_prompt: ``None``: unless the last message is to be continued.
            chat_template_kwargs: what the template alone knows.
            options: ``tools`` and ``chat_template``, as for ``LLM.chat``.

        Raises:
            RequestError: there is no template, it refuses the messages, or an option is none that
                it may be, or is given twice.
        """
        tokenizer = self.need_tokenizer("a conversation")
        if add_generation_prompt is None:
            add_generation_prompt = continue_final_message is not True
        options["add_generation_prompt"] = add_generation_prompt
        options["continue_final_message"] = continue_final_message
        own: dict[Any, Any] = dict(
            _template_options("chat_template_kwargs", chat_template_kwargs) or {}
        )
        for name in own:
            if text("a name in chat_template_kwargs", name) in _RESERVED:
                raise RequestError(
                    f"chat_template_kwargs has {name!r}, which is no option of a template: give it "
                    "beside chat_template_kwargs, or leave it out"
                )
        checked = {name: rule(name, options.get(name)) for name, rule in _CHAT_RULES.items()}
        prompts: list[Prompt] = []
        for conversation in _as_conversations(messages):
            render = partial(tokenizer.apply_chat_template, conversation, tokenize=False, **own)
            formatted = render(**checked)
            if checked["tools"] and "tools_ignored" not in self._warned:
                self._warn_of_tools(formatted, partial(render, **checked | {"tools": None}))
            # the template has written the special tokens
            prompts.append({"prompt": str(formatted), "add_special_tokens": False})
        return prompts

    def _warn_of_tools(self, formatted: object, without: Callable[[], object]) -> None:
        """Say once that a template does not show tools: ``without`` them it makes the same text."""
        with suppress(RequestError):  # it needs them
            if without() == formatted:
                self._warn_once(
                    "tools_ignored",
                    reason="the chat template does not show tools, so the model does not see them",
                    remedy="describe them in a message, or use a chat template that shows them",
                )

    def encode(
        self, prompt: Prompt, sampling: SamplingParams | None = None
    ) -> tuple[str | None, tuple[int, ...]]:
        """Return a prompt's text, if it has one, and its token ids.

        Raises:
            RequestError: it is no prompt, or too long.
        """
        truncates = sampling is not None and sampling.truncate_prompt_tokens is not None
        limit = None if truncates else self.max_model_len
        found, token_ids = _encode_prompt(prompt, self.need_tokenizer, limit)
        if found is not None and not (
            isinstance(prompt, Mapping) and "add_special_tokens" in prompt
        ):
            token_ids = self._without_second_start(token_ids)
        return found, token_ids

    def _without_second_start(self, token_ids: tuple[int, ...]) -> tuple[int, ...]:
        """Return the ids of a text without the token that it begins with itself already."""
        assert self.tokenizer is not None
        if len(token_ids) < 2 or token_ids[0] != token_ids[1]:
            return token_ids
        begins = (self.tokenizer.encode("a", add_special_tokens=each)[:1] for each in (True, False))
        if [each == [token_ids[0]] for each in begins] != [True, False]:
            return token_ids
        self._warn_once(
            "begins_twice",
            reason="the prompt begins with the token that its tokenizer puts before it, perhaps "
            "because a chat template wrote it; it was not added again",
            remedy="give add_special_tokens: true with the prompt to have both",
        )
        return token_ids[1:]

    # ------------------------------------------------------------------ requests

    def sampling(self, given: SamplingParams | None) -> SamplingParams:
        """Return parameters, by default the model's; ``RequestError``: they are something else."""
        if given is None:
            return SamplingParams(**self.completed({}))
        parameters: SamplingParams = _SAMPLING("sampling_params", given)
        return parameters

    def completed(self, given: Mapping[str, Any], **otherwise: Any) -> dict[str, Any]:
        """Return sampling parameters of a request, and the model's where it says nothing.

        The model's own for chance are left out where the best token, or beams, are asked for, and
        what contradicts the request.

        Args:
            otherwise: values of what neither says.
        """
        found = {**otherwise, **self.defaults, **given}
        beams = found.get("beam_width") is not None
        without = _CHANCE if beams or not found.get("temperature") else set()
        if beams or self.tokenizer is None or not found.get("detokenize", True):
            without = without | {"stop"}
        for name in without - set(given):
            found.pop(name, None)
        limit = found.get("max_tokens", SamplingParams().max_tokens)
        if "min_tokens" in found.keys() - given.keys() and isinstance(limit, int):
            found["min_tokens"] = min(found["min_tokens"], limit)
        return found

    def generation(
        self,
        prompt: Prompt,
        sampling: SamplingParams | None = None,
        *,
        arrival: float,
        request_id: str | None = None,
        **fields: Any,
    ) -> Generation:
        """Return a generation whose request can be added to an engine.

        Args:
            arrival: seconds on the engine's clock.
            request_id: ``None``: a number.
            fields: of :class:`~paged_core.request.Request`, such as ``priority``.

        Raises:
            RequestError: the prompt or a parameter can never be served.
        """
        asked = self.sampling(sampling)
        resolved = self._resolve(asked)
        prompt_text, token_ids = self.encode(prompt, resolved)
        self._warn_of_greedy(resolved)
        request = Request(
            id=str(next(self._numbers)) if request_id is None else request_id,
            prompt=token_ids,
            sampling=resolved,
            arrival=arrival,
            **fields,
        )
        self._warn_of_length(request)
        return Generation(request, prompt_text, self.tokenizer)

    def _resolve(self, sampling: SamplingParams) -> SamplingParams:
        """Return parameters that need neither the tokenizer nor the model's length any more."""
        changes: dict[str, Any] = {}
        if sampling.stop:
            self.need_tokenizer("a stop string")
        if sampling.bad_words:
            found = _bad_words_ids(sampling.bad_words, self.need_tokenizer("a bad word"))
            changes = {"bad_words": (), "bad_words_ids": (*sampling.bad_words_ids, *found)}
        if sampling.truncate_prompt_tokens == -1:
            changes["truncate_prompt_tokens"] = self.max_model_len - 1
        return sampling.clone(**changes) if changes else sampling

    def _warn_of_length(self, request: Request) -> None:
        """Say once that a request cannot have all of its tokens."""
        asked, room = request.sampling.max_tokens, self.max_model_len - len(request.prompt)
        if asked is not None and 0 < room < asked:
            self._warn_once(
                "max_tokens_cut",
                max_tokens=asked,
                to_tokens=room,
                reason=f"the prompt has {len(request.prompt)} tokens, and a sequence has at most "
                f"{self.max_model_len} (max_model_len)",
                remedy="ask for fewer, or raise max_model_len if the model's own is larger; such "
                "outputs say is_cut",
            )

    def _warn_once(self, event: str, **said: Any) -> None:
        if event not in self._warned:
            self._warned.add(event)
            _log.warning(event, **said)

    def _warn_of_greedy(self, sampling: SamplingParams) -> None:
        """Say once that parameters which ask for chance have no effect."""
        if sampling.without_effect:
            given = ", ".join(f"{name}={value}" for name, value in sampling.without_effect.items())
            self._warn_once(
                "parameters_without_effect",
                parameters=given,
                reason="temperature is 0, which always takes the best token",
                remedy="set temperature, to 1.0 for example",
            )


def sampling_defaults(executor: Executor) -> Mapping[str, Any]:
    """Return the parameters that an executor's model comes with, and say them."""
    found = executor.sampling_defaults() if isinstance(executor, SupportsSamplingDefaults) else {}
    if found:
        _log.info(
            "sampling_defaults",
            **found,
            reason="the model's generation_config.json, or config.json, has them; they hold where "
            "a request says nothing else",
            remedy="set generation_config: none to do without",
        )
    return found


def _bad_words_ids(words: Iterable[str], tokenizer: Tokenizer) -> list[tuple[int, ...]]:
    """Return the token ids of words, each on its own and after a space."""
    found: dict[tuple[int, ...], None] = {}
    for word in words:
        bare = word.lstrip() or word
        for written in (bare, f" {bare}"):
            found[tuple(tokenizer.encode(written, add_special_tokens=False))] = None
    return [token_ids for token_ids in found if token_ids]


# ---------------------------------------------------------------------- forms of prompts


def _as_list(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """Return one or several prompts as a list; a flat list of integers is one.

    Raises:
        RequestError: they are neither.
    """
    if isinstance(prompts, (str, Mapping)):
        return [prompts]
    what = "texts or lists of token ids, one or several"
    if prompts is None:
        raise refusal("prompts", f"be {what}", prompts)
    listed = entries("prompts", prompts, what)
    if listed and all(_is_token_id(item) for item in listed):
        return [listed]
    return listed


def _as_conversations(messages: object) -> list[list[Any]]:
    """Return one conversation or several as a list; a list of mappings is one.

    Raises:
        RequestError: they are neither.
    """
    what = "messages such as {'role': 'user', 'content': 'Hello'}, or a list of conversations"
    if messages is None:
        raise refusal("messages", f"be {what}", messages)
    listed = entries("messages", messages, what)
    if listed and isinstance(listed[0], Mapping):
        return [listed]
    return [entries("messages", conversation, what) for conversation in listed]


def _per_prompt(name: str, values: Any, num_prompts: int, rule: Rule) -> list[Any]:
    """Return one value per prompt: the same for all, or those that are listed.

    Raises:
        RequestError: there are more or fewer of them than prompts, or ``rule`` refuses one.
    """
    if not isinstance(values, Iterable) or isinstance(values, str | bytes | Mapping):
        return [rule(name, values)] * num_prompts
    listed = [rule(name, value) for value in entries(name, values, "one for each prompt, or one")]
    if len(listed) != num_prompts:
        raise RequestError(
            f"{name} has {len(listed)} entries for {num_prompts} prompts; give one for each, or one"
        )
    return listed


def as_token_ids(prompt: object) -> tuple[int, ...]:
    """Return the token ids of a prompt that is not text.

    Raises:
        RequestError: it is not a list of integers.
    """
    if prompt is None:
        raise RequestError("a prompt is text or a list of token ids, not None")
    return token_ids("a prompt that is not text", prompt)


def encode_within(
    encode: Callable[[str], Sequence[int]], text: str, max_tokens: int
) -> tuple[int, ...]:
    """Return the token ids of ``text``, without reading all of one that has far too many.

    Raises:
        RequestError: its beginning has more than ``max_tokens`` already.
    """
    end = CHARACTERS_PER_TOKEN * max_tokens
    while end < len(text):
        if len(encode(text[:end])) > max_tokens + _SLACK:
            raise RequestError(
                f"the prompt has {len(text)} characters, of which the first {end} are more than "
                f"the {max_tokens} tokens that a sequence may have; shorten it"
            )
        end *= 4
    return tuple(encode(text))


def _encode_prompt(
    prompt: Prompt, need_tokenizer: Callable[[str], Tokenizer], max_tokens: int | None
) -> tuple[str | None, tuple[int, ...]]:
    """Return a prompt's text, if it has one, and its token ids.

    Args:
        need_tokenizer: takes what needs a tokenizer, and raises if there is none.
        max_tokens: of more, text is refused; ``None``: it may have any number.

    Raises:
        RequestError: it is no prompt, or too long.
    """
    options: dict[str, bool] = {}
    if isinstance(prompt, Mapping):
        unknown = set(prompt) - _KEYS
        if unknown or not prompt:
            raise RequestError(
                "a prompt given as a mapping has the key 'prompt' or 'prompt_token_ids', not "
                f"{', '.join(map(shown, unknown)) or 'none'}"
            )
        if "prompt_token_ids" in prompt:
            if len(prompt) > 1:
                raise RequestError(
                    "a prompt given as 'prompt_token_ids' has no other key: the engine could not "
                    "tell whether a text beside them is the same"
                )
            return None, as_token_ids(prompt["prompt_token_ids"])
        special = flag("add_special_tokens", prompt.get("add_special_tokens", True))
        options, prompt = {"add_special_tokens": special}, prompt.get("prompt", ())
    if not isinstance(prompt, str):
        return None, as_token_ids(prompt)
    encode = partial(need_tokenizer("text").encode, **options)
    if not prompt and not encode(prompt):
        raise RequestError("the prompt is empty; it needs at least one character")
    if max_tokens is None:
        return prompt, tuple(encode(prompt))
    return prompt, encode_within(encode, prompt, max_tokens)


def _is_token_id(item: object) -> bool:
    return hasattr(item, "__index__") and not isinstance(item, bool)
