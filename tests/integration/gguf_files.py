"""GGUF files of tiny models, made with the package ``gguf``: its writer, its names, its numbers.

What llama.cpp's conversion does to the weights is done here too.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
import transformers
from gguf import GGMLQuantizationType as Type
from numpy.typing import NDArray

ARCHITECTURES = {"mistral": "llama", "gemma3_text": "gemma3"}
"""Names in llama.cpp of model types that it calls otherwise."""
K_QUANTS = (Type.Q2_K, Type.Q3_K, Type.Q4_K, Type.Q5_K, Type.Q6_K)
SIMPLE = (Type.Q4_0, Type.Q4_1, Type.Q5_0, Type.Q5_1, Type.Q8_0)

Array = NDArray[Any]


@dataclass
class GgufModel:
    """A model of the transformers library, and how it is written to a file."""

    model: Any
    type: Type = Type.F32
    """Type of all matrices but those in ``types``."""
    values: dict[str, Any] = field(default_factory=dict)
    """Added to a file, or in place of its values; ``None`` removes one."""
    types: dict[str, Type] = field(default_factory=dict)
    """Types of matrices with this in their names."""
    random: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))

    @property
    def config(self) -> Any:
        return self.model.config

    @property
    def architecture(self) -> str:
        return ARCHITECTURES.get(self.config.model_type, self.config.model_type)

    def write(self, path: Path) -> Path:
        """Write the file; the model's weights become what the file holds, to float32."""
        writer = gguf.GGUFWriter(path, self.architecture)
        for name, value in (self._described() | self.values).items():
            _add(writer, name, value)
        names = gguf.get_tensor_name_map(
            next(key for key, name in gguf.MODEL_ARCH_NAMES.items() if name == self.architecture),
            self.config.num_hidden_layers,
        )
        state = self.model.state_dict()
        for name, weight in state.items():
            if name == "lm_head.weight" and self.config.tie_word_embeddings:
                continue
            there, back = self._conversion(name)
            own = names.get_name(name, try_suffixes=(".weight", ".bias"))
            assert own is not None, name
            stored = there(weight.numpy())
            kind = Type.F32 if stored.ndim == 1 else self._type(own)
            blocks, numbers = self._quantized(stored, kind)
            writer.add_tensor(own, blocks, raw_dtype=kind)
            weight.copy_(torch.from_numpy(back(numbers)))
        divisors = self._divisors()
        if divisors is not None:
            writer.add_tensor("rope_freqs.weight", divisors)
        _close(writer)
        return path

    # ------------------------------------------------------------------ weights

    def _conversion(self, name: str) -> tuple[Callable[[Array], Array], Callable[[Array], Array]]:
        """Return what makes the stored form of a weight, and what makes the original again."""
        config, kind = self.config, self.config.model_type
        if kind in ("llama", "mistral") and (".q_proj." in name or ".k_proj." in name):
            heads = config.num_key_value_heads if ".k_proj." in name else config.num_attention_heads
            width = config.head_dim
            rows = np.arange(heads * width).reshape(heads, 2, width // 2).swapaxes(1, 2).ravel()
            return lambda weight: weight[rows], lambda stored: stored[np.argsort(rows)]
        if kind.startswith("gemma") and name.endswith("norm.weight"):
            return lambda weight: weight + 1, lambda stored: stored - 1
        if kind == "gpt2" and name.endswith(("c_attn.weight", "c_proj.weight", "c_fc.weight")):
            return lambda weight: weight.T.copy(), lambda stored: stored.T
        return lambda weight: weight, lambda stored: stored

    def _type(self, name: str) -> Type:
        """Return the type of a matrix."""
        return next((kind for part, kind in self.types.items() if part in name), self.type)

    def _quantized(self, numbers: Array, kind: Type) -> tuple[Array, Array]:
        """Return what is stored for a tensor, and the numbers that this means."""
        if kind == Type.F32:
            return numbers, numbers
        if kind in K_QUANTS:
            blocks = random_blocks(kind, numbers.shape, self.random)
        else:
            blocks = gguf.quants.quantize(numbers, kind)
        return blocks, gguf.quants.dequantize(blocks, kind)

    # ------------------------------------------------------------------ values

    def _described(self) -> dict[str, Any]:
        described = self._gpt2() if self.config.model_type == "gpt2" else self._llama_like()
        return {
            **{f"{self.architecture}.{name}": value for name, value in described.items()},
            "tokenizer.ggml.eos_token_id": self.config.eos_token_id,
        }

    def _gpt2(self) -> dict[str, Any]:
        config = self.config
        return {
            "block_count": config.n_layer,
            "context_length": config.n_positions,
            "embedding_length": config.n_embd,
            "feed_forward_length": config.n_inner or 4 * config.n_embd,
            "attention.head_count": config.n_head,
            "attention.layer_norm_epsilon": config.layer_norm_epsilon,
        }

    def _llama_like(self) -> dict[str, Any]:
        config = self.config
        width = getattr(config, "head_dim", None) or (
            config.hidden_size // config.num_attention_heads
        )
        given = {
            "block_count": config.num_hidden_layers,
            "context_length": config.max_position_embeddings,
            "embedding_length": config.hidden_size,
            "feed_forward_length": config.intermediate_size,
            "attention.head_count": config.num_attention_heads,
            "attention.head_count_kv": config.num_key_value_heads,
            "attention.key_length": width,
            "attention.value_length": width,
            "attention.layer_norm_rms_epsilon": config.rms_norm_eps,
            "attn_logit_softcapping": getattr(config, "attn_logit_softcapping", None),
            "final_logit_softcapping": getattr(config, "final_logit_softcapping", None),
        }
        if config.model_type in ("mistral", "gemma2", "gemma3_text"):
            given["attention.sliding_window"] = config.sliding_window
        return given | self._rope()

    def _rope(self) -> dict[str, Any]:
        rope = self.config.rope_parameters
        full = rope.get("full_attention", rope)
        given: dict[str, Any] = {"rope.freq_base": full["rope_theta"]}
        if "sliding_attention" in rope:
            given["rope.freq_base_swa"] = rope["sliding_attention"]["rope_theta"]
        if full["rope_type"] == "linear":
            given |= {"rope.scaling.type": "linear", "rope.scaling.factor": full["factor"]}
        return given

    def _divisors(self) -> Array | None:
        rope = getattr(self.config, "rope_parameters", None) or {}
        if rope.get("rope_type") != "llama3":
            return None
        scaled = self.model.model.rotary_emb.inv_freq.numpy()
        places = np.arange(0, self.config.head_dim, 2) / self.config.head_dim
        return (rope["rope_theta"] ** -places / scaled).astype(np.float32)


def random_blocks(kind: Type, shape: tuple[int, ...], random: np.random.Generator) -> Array:
    """Return blocks for the rows of a tensor: any bytes, and small scales."""
    length, num_bytes = gguf.GGML_QUANT_SIZES[kind]
    blocks = random.integers(0, 256, (*shape[:-1], shape[-1] // length, num_bytes), dtype=np.uint8)
    for begin in SCALES[kind.name]:
        scales = random.uniform(1e-4, 4e-4, blocks.shape[:-1]).astype("<f2")
        blocks[..., begin : begin + 2] = scales[..., None].view(np.uint8)
    return blocks.reshape(*shape[:-1], -1)


SCALES: Mapping[str, tuple[int, ...]] = {
    "Q4_0": (0,),
    "Q4_1": (0, 2),
    "Q5_0": (0,),
    "Q5_1": (0, 2),
    "Q8_0": (0,),
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "Q4_K": (0, 2),
    "Q5_K": (0, 2),
    "Q6_K": (208,),
}
"""Where the float16 of a block are."""


def _add(writer: gguf.GGUFWriter, name: str, value: Any) -> None:
    if value is None or value == []:
        return
    kind = gguf.GGUFValueType.get_type(value)
    writer.add_key_value(name, value, gguf.GGUFValueType.UINT32 if type(value) is int else kind)


def _close(writer: gguf.GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def load(folder: Path) -> Any:
    """Return a model of the library, in float32."""
    return transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    ).eval()


def tokenizer_values(folder: Path, rules: str) -> dict[str, Any]:
    """Return what llama.cpp's conversion writes for the byte-level tokenizer in ``folder``."""
    content = json.loads((folder / "tokenizer.json").read_text())
    config = json.loads((folder / "tokenizer_config.json").read_text())
    ids = content["model"]["vocab"] | {
        each["content"]: each["id"] for each in content["added_tokens"]
    }
    tokens = sorted(ids, key=lambda token: ids[token])
    special = {each["content"] for each in content["added_tokens"] if each["special"]}
    named = {
        f"tokenizer.ggml.{name}_token_id": ids[config[f"{name}_token"]] for name in ("bos", "eos")
    }
    return named | {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": rules,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3 if token in special else 1 for token in tokens],
        "tokenizer.ggml.merges": [" ".join(pair) for pair in content["model"]["merges"]],
        "tokenizer.ggml.add_bos_token": True,
        "tokenizer.chat_template": config.get("chat_template") or template(folder),
    }


def template(folder: Path) -> str | None:
    """Return the chat template that lies in a file of its own."""
    path = folder / "chat_template.jinja"
    return path.read_text() if path.exists() else None


def write_values(path: Path, values: Mapping[str, Any]) -> Path:
    """Write a file that holds nothing but values."""
    writer = gguf.GGUFWriter(path, "llama")
    for name, value in values.items():
        _add(writer, name, value)
    _close(writer)
    return path
