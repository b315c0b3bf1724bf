"""Checkpoint that says what it is told: any text, token by token, through the whole server.

:func:`make_told` writes one. A prompt that has ``say(text)`` in it, at any place (in what a user
says, in a tool's result, around it whatever a template writes) is answered with exactly that text,
then with the token that ends a sequence. The last one counts; without any, the answer is
``Done.``. It is written as ``[say:BASE64]``, which templates and JSON leave as it is. ::

    folder = make_told(tmp_path, specials=["<tool_call>", "</tool_call>"])
    Served(registry=told_registry(), **told_settings(folder))       # in a thread of the test
    serve_process(*told_options(folder), **told_environ(folder))    # a process
    client.chat.completions.create(messages=[{"role": "user", "content": say('{"a": tru')}], ...)

In an agent's loop, let the tool's result have the next ``say``. Tools and formats may be sent: the
token that was told has a logit that is 30 above all others, so that it is sampled at any usual
temperature, and a grammar that does not allow it masks it as it would with any model. Each byte is
a token, and each of ``specials`` is one that is special. The weights are random and tiny.
"""

from __future__ import annotations

import json
import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

from paged_backends.executors.settings import LocalSettings
from paged_backends.runners.settings import NativeSettings
from paged_core.plugins.component import Component
from paged_core.plugins.hooks import hookimpl
from paged_core.plugins.registry import Registry

END = "<|told|>"
"""Token that ends a sequence: a text that no model writes."""
DEFAULT = "Done."
"""The answer where nothing is told."""
LENGTH = 1 << 18
"""Tokens of the longest sequence."""
TEMPLATE = (
    "{% if tools %}{{ '<|system|>\n' + tools | tojson + '<|told|>\n' }}{% endif %}"
    "{% for message in messages %}{{ '<|' + message.role + '|>\n' }}"
    "{% if message.reasoning_content %}"
    "{{ '<think>\n' + message.reasoning_content + '\n</think>\n' }}{% endif %}"
    "{{ message.content or '' }}{% for call in message.tool_calls or [] %}"
    "{{ '<tool_call>\n' + call.function | tojson + '\n</tool_call>' }}{% endfor %}"
    "{{ '<|told|>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}"
)
_MARK = re.compile(rb"\[say:([A-Za-z0-9_=-]*)\]")


def say(text: str | bytes) -> str:
    """Return what makes the model say a text, or bytes that need not be one."""
    data = text.encode() if isinstance(text, str) else text
    return f"[say:{urlsafe_b64encode(data).decode()}]"


def told_in(prompt: bytes) -> bytes:
    """Return what a prompt says is to be said."""
    marks = _MARK.findall(prompt)
    return urlsafe_b64decode(marks[-1]) if marks else DEFAULT.encode()


def told_tokens(tokenizer: Any, prompt: Iterable[int]) -> list[int]:
    """Return the tokens of what the tokens of a prompt say is to be said."""
    words = tokenizer.token_bytes
    ids = {words[token]: token for token in range(tokenizer.vocab_size)}
    specials = b"|".join(re.escape(words[each]) for each in tokenizer.special_ids)
    said = told_in(b"".join(words[token] for token in prompt))
    return [ids[piece] for piece in re.findall(specials + b"|.", said, re.DOTALL)]


def make_told(folder: Path, specials: Sequence[str] = (), template: str = TEMPLATE) -> Path:
    """Write the checkpoint, and return its folder.

    Args:
        specials: texts that are special tokens, as the marks of many families are.
        template: of chats, in Jinja.
    """
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({each: n for n, each in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    for each in (END, *specials):
        tokenizer.add_special_tokens([AddedToken(each, normalized=False)])
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 64,
        "intermediate_size": 64,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "max_position_embeddings": LENGTH,
        "rms_norm_eps": 1e-6,
        "dtype": "float32",
        "vocab_size": tokenizer.get_vocab_size(),
        "eos_token_id": tokenizer.token_to_id(END),
    }
    named = {"eos_token": END, "chat_template": template}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer_config.json").write_text(json.dumps(named))
    info = folder / "told-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: told\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[paged_core]\ntold = server.told\n")
    return folder


def told_settings(folder: Path) -> dict[str, Any]:
    """Return the settings of an engine with this checkpoint; and :func:`told_registry`."""
    return {"model": str(folder), "executor": "told", "runner": "told", "device": "cpu"}


def told_options(folder: Path) -> list[str]:
    """Return the options of ``paged-core serve`` and the like."""
    return [part for key, value in told_settings(folder).items() for part in (f"--{key}", value)]


def told_environ(folder: Path) -> dict[str, str]:
    """Return the variables of a process in which the checkpoint can be run."""
    return {"PYTHONPATH": f"{folder}:{Path(__file__).parents[1]}"}


class ToldExecutorSettings(LocalSettings):
    """Options of ``local``."""

    name: Literal["told"] = "told"  # type: ignore[assignment]


class ToldRunnerSettings(NativeSettings):
    """Options of ``native``."""

    name: Literal["told"] = "told"  # type: ignore[assignment]
    weights: Literal["checkpoint", "random"] = "random"


@hookimpl
def paged_core_components() -> Iterator[Component]:
    executor, runner = "server.told_model:ToldExecutor", "server.told_model:ToldRunner"
    yield Component("executor", ToldExecutorSettings, executor, rank=None)
    yield Component("runner", ToldRunnerSettings, runner, rank=None)


def told_registry() -> Registry:
    """Return what is installed, and the checkpoint's components."""
    return Registry.discover().extended(*paged_core_components(), plugin="told")
