"""The runner ``native`` on GGUF files: its logits are those of the numbers in the file."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from string import ascii_letters
from tempfile import TemporaryDirectory
from typing import Any

import huggingface_hub
import numpy as np
import pytest
import torch
import transformers
from gguf import GGMLQuantizationType as Type
from gguf import GGUFEndian, GGUFWriter
from huggingface_hub.errors import EntryNotFoundError
from hypothesis import strategies as st

from integration import damage, gguf_files, tiny_models
from integration.gguf_files import K_QUANTS, SIMPLE, GgufModel, tokenizer_values
from integration.step_driver import load_runner, prompt_logits, settings
from integration.test_checkpoints import unanswered
from paged_backends.checkpoint.folder import Checkpoint, resolve_checkpoint
from paged_backends.checkpoint.gguf.reader import read_header
from paged_backends.checkpoint.weights import open_weights
from paged_backends.quantization.matrix import QuantizedMatrix
from paged_backends.runners.native.assembly import Assembly
from paged_backends.runners.native.decoder import BlockTable, Decoder, Linear
from paged_backends.runners.native.families import decoder_config
from paged_backends.runners.native.ops import Ops
from paged_backends.runners.native.source import ModelSource
from paged_backends.text.tokenizer_loader import load_tokenizer
from paged_core import LLM, SamplingParams
from paged_core.errors import CheckpointError, UnsupportedModel

pytestmark = pytest.mark.heavy


OWN = {
    "llama, llama3 rope, biases": tiny_models.of(
        "Llama", rope_parameters=tiny_models.LLAMA3, attention_bias=True
    ),
    "gemma3, linear rope, caps": tiny_models.of(
        "Gemma3Text",
        head_dim=16,
        query_pre_attn_scalar=16,
        num_hidden_layers=7,
        sliding_window=8,
        final_logit_softcapping=3.0,
        rope_parameters=tiny_models.GEMMA3_ROPES,
    ),
    "gemma2, another window": tiny_models.of(
        "Gemma2", head_dim=16, sliding_window=4, query_pre_attn_scalar=16
    ),
    "llama for large blocks": tiny_models.of(
        "Llama", hidden_size=256, intermediate_size=512, vocab_size=70
    ),
}
SAME = ["llama", "llama, linear rope, tied", "mistral", "qwen2", "qwen3", "gemma", "gpt2"]
"""Configurations of tiny_models that a file can describe."""


def make(
    name: str, kind: Type = Type.F32, types: dict[str, Type] | None = None, **values: Any
) -> GgufModel:
    """A model with random weights; those that are small or zero at first are moved."""
    torch.manual_seed(0)
    config = (OWN.get(name) or tiny_models.NATIVE[name])()
    model = transformers.AutoModelForCausalLM.from_config(
        config, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    for parameter in model.parameters():
        parameter.requires_grad_(False)
        if parameter.ndim == 1:
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return GgufModel(model, kind, values, types or {})


def check(made: GgufModel, path: Path) -> None:
    """Write the file, and compare its logits with those of the model of the same numbers.

    Kernels also round the activations that they multiply with quantised weights.
    """
    made.write(path)
    runner = load_runner(path, "native", kernels="off")
    tokens = tiny_models.PROMPTS[2]
    with torch.inference_mode():
        expected = made.model(torch.tensor([tokens])).logits[0]
    assert expected.std() > 0.01
    torch.testing.assert_close(prompt_logits(runner, tokens), expected, rtol=1e-4, atol=1e-4)
    off = prompt_logits(load_runner(path, "native"), tokens) - expected
    assert off.abs().mean() < 0.03 * expected.std()
    assert runner.vocab_size == made.config.vocab_size
    assert runner.max_model_len == made.config.max_position_embeddings
    assert runner.eos_token_ids == {2}


LARGE = "llama for large blocks"
MIXED: dict[str, tuple[Type, dict[str, Type]]] = {
    "as in Q4_K_M": (Type.Q4_K, {"attn_v": Type.Q6_K, "ffn_down": Type.Q6_K}),
    "an embedding alone": (Type.F32, {"token_embd": Type.Q6_K}),
    "a head alone": (Type.F32, {"output.weight": Type.Q5_K}),
    "keys that are not": (Type.Q8_0, {"attn_k": Type.F32, "output.weight": Type.F16}),
    "all but the head and the embedding": (
        Type.Q3_K,
        {"output.weight": Type.BF16, "token_embd": Type.F16, "ffn_gate": Type.Q5_1},
    ),
}
MADE: dict[str, tuple[Any, ...]] = {
    **{name: (name,) for name in (*SAME, *OWN)},
    **{kind.name: ("qwen3", kind) for kind in (Type.F16, Type.BF16, *SIMPLE)},
    **{kind.name: (LARGE, kind) for kind in K_QUANTS},
    **{name: (LARGE, *types) for name, types in MIXED.items()},
    "a head that is the quantised embedding": ("llama, linear rope, tied", Type.Q5_0),
}


@pytest.mark.parametrize("name", MADE)
def test_logits_are_those_of_the_numbers_in_the_file(name: str, tmp_path: Path) -> None:
    check(make(*MADE[name]), tmp_path / "model.gguf")


@pytest.mark.parametrize(
    "values",
    [
        {"rope.scaling.type": None},
        {"rope.scaling.type": None, "rope.scaling.factor": None, "rope.scale_linear": 2.0},
        {"vocab_size": 300, "rope.scaling.finetuned": True},
    ],
    ids=["a factor alone", "its older name", "what has no effect"],
)
def test_positions_are_scaled_whatever_the_factor_is_called(
    values: dict[str, Any], tmp_path: Path
) -> None:
    named = {f"llama.{name}": value for name, value in values.items()}
    made = make("llama, linear rope, tied", **named)
    assert made.config.rope_parameters["factor"] == 2.0
    check(made, tmp_path / "model.gguf")


class KeepingOps(Ops):
    """Keeps the matrices of which linear layers are made."""

    def __init__(self, **options: bool) -> None:
        super().__init__(**options)
        self.matrices: list[QuantizedMatrix] = []

    def quantized(
        self,
        matrix: QuantizedMatrix,
        bias_O: torch.Tensor | None = None,  # noqa: N803 - its shape
    ) -> Linear:
        self.matrices.append(matrix)
        return super().quantized(matrix, bias_O)


def decoder_of(path: Path, ops: Ops) -> Decoder:
    source = ModelSource.open(settings(path), "checkpoint")
    return Assembly(source, ops).decoder()


def test_a_scale_that_is_not_a_number_is_refused(tmp_path: Path) -> None:
    path = make("qwen3", Type.Q8_0).write(tmp_path / "model.gguf")
    stored = Checkpoint.open(str(path), reads_gguf=True).gguf
    assert stored is not None
    content = bytearray(path.read_bytes())
    begin = stored.tensors["blk.1.ffn_up.weight"].begin
    content[begin : begin + 2] = np.float16("inf").tobytes()
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"blk.1.ffn_up.weight in .* \(Q8_0\) has a scale"):
        load_runner(path, "native")


def test_weights_stay_quantised(tmp_path: Path) -> None:
    path = make(LARGE, *MIXED["as in Q4_K_M"]).write(tmp_path / "model.gguf")
    ops = KeepingOps()
    decoder = decoder_of(path, ops)
    assert len(ops.matrices) == 4 * 2 + 1
    formats = [matrix.weight_format.name for matrix in ops.matrices[1:5]]
    assert formats == ["int8-g16", "int4-g32", "int4-g32", "int8-g16"]
    assert isinstance(decoder.embedding.table, BlockTable)


# ---------------------------------------------------------------------- a whole model


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A folder with one file."""
    folder = tmp_path / "small"
    folder.mkdir()
    make("llama").write(folder / "small.gguf")
    return folder


def test_the_demo_model_says_the_same_with_its_tokenizer_in_one_file(tmp_path: Path) -> None:
    folder = resolve_checkpoint("demo")
    model = gguf_files.load(folder).requires_grad_(False)
    file = GgufModel(model, Type.F32, tokenizer_values(folder, "smollm")).write(tmp_path / "a.gguf")
    answers = []
    for name in ("demo", str(file)):
        with LLM(name, num_blocks=64) as llm:
            outputs = llm.generate("Count from 1 to 10:", SamplingParams(max_tokens=20))
            talk = [{"role": "user", "content": "What is a block table?"}]
            outputs += llm.chat(talk, SamplingParams(max_tokens=8))
            answers.append([(one.prompt_token_ids, one.outputs[0].text) for one in outputs])
    assert answers[0] == answers[1]


def test_which_file_of_a_folder_is_read(small: Path) -> None:
    """The only one, but other weights take precedence."""
    (small / "mmproj-small.gguf").touch()  # which reads images
    assert resolve_checkpoint(str(small)) == small / "small.gguf"
    shutil.copy(small / "small.gguf", small / "large.gguf")
    with pytest.raises(CheckpointError, match=r"2 GGUF files \(large.gguf, small.gguf\)"):
        resolve_checkpoint(str(small))
    tiny_models.save("qwen3", small)
    assert resolve_checkpoint(str(small)) == small
    assert Checkpoint.open(str(small)).model_type == "qwen3"


def test_a_file_of_a_repository(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fetch(repository: str, name: str) -> str:
        assert repository == "a/b"
        if name != "small.gguf":
            raise unanswered(EntryNotFoundError)
        return str(small / name)

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", fetch)
    assert resolve_checkpoint("a/b:small.gguf") == small / "small.gguf"
    with pytest.raises(CheckpointError, match="a/b on the hub has no file of that name"):
        resolve_checkpoint("a/b:other.gguf")
    with pytest.raises(CheckpointError, match="does not name a GGUF file"):
        resolve_checkpoint("a/b:model.safetensors")
    with pytest.raises(CheckpointError, match=r"there is no file missing\.gguf; set `model`"):
        resolve_checkpoint("missing.gguf")


def test_the_runner_of_transformers_refuses_it(small: Path) -> None:
    with pytest.raises(UnsupportedModel, match="native and onnxruntime read; set runner to one"):
        load_runner(small, "transformers")


def test_under_auto_no_runner_is_recommended_that_has_just_refused(tmp_path: Path) -> None:
    writer = GGUFWriter(path := tmp_path / "model.gguf", "mamba")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    with pytest.raises(UnsupportedModel, match=r"transformers: .* onnxruntime read$") as caught:
        LLM(str(path), num_blocks=8)
    assert "set runner" not in str(caught.value)


def test_a_file_of_any_name_is_recognised(small: Path, tmp_path: Path) -> None:
    blob = tmp_path / "sha256-abc"
    blob.write_bytes((small / "small.gguf").read_bytes())
    with LLM(str(blob), num_blocks=8) as llm:
        (output,) = llm.generate([[3, 4]], SamplingParams(max_tokens=2, ignore_eos=True))
    assert len(output.outputs[0].token_ids) == 2
    blob.write_bytes(b"GGU")
    with pytest.raises(CheckpointError, match="is a file, and no GGUF file"):
        resolve_checkpoint(str(blob))


def test_a_big_endian_file_is_called_so(tmp_path: Path) -> None:
    writer = GGUFWriter(tmp_path / "big.gguf", "llama", endianess=GGUFEndian.BIG)
    writer.add_token_list(["a"] * 3)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    with pytest.raises(CheckpointError, match=r"big endian, .* convert the model again"):
        read_header(tmp_path / "big.gguf")


def test_weights_from_a_seed_need_only_the_values(small: Path) -> None:
    with LLM(str(small), runner={"name": "native", "weights": "random"}, num_blocks=8) as llm:
        (output,) = llm.generate([[3, 4]], SamplingParams(max_tokens=2, ignore_eos=True))
    assert len(output.outputs[0].token_ids) == 2


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [(Type.F16, "float16"), (Type.Q8_0, "bfloat16")],
    ids=lambda part: getattr(part, "name", part),
)
def test_the_dtype_is_that_of_the_matrices(kind: Type, dtype: str, tmp_path: Path) -> None:
    path = make("qwen3", kind).write(tmp_path / "model.gguf")
    checkpoint = Checkpoint.open(str(path), reads_gguf=True)
    assert checkpoint.config["dtype"] == dtype
    runner = load_runner(settings(path, dtype="bfloat16"), "native")
    assert runner.layers[0].dtype == "bfloat16"


def test_the_end_of_a_turn_ends_a_sequence(tmp_path: Path) -> None:
    values = {
        "tokenizer.ggml.eot_token_id": 7,
        "tokenizer.ggml.eos_token_ids": [2, 8],
        "tokenizer.ggml.tokens": [f"t{number}" for number in range(299)] + ["<|im_end|>"],
    }
    path = make("llama", **values).write(tmp_path / "model.gguf")
    assert load_runner(path, "native").eos_token_ids == {2, 7, 8, 299}


# ---------------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"general.architecture": "phi3"}, "is of 'phi3'; take the model as safetensors"),
        ({"llama.expert_count": 8}, "llama.expert_count, which is not covered"),
        ({"llama.rope.scaling.type": "yarn"}, "rotary embeddings scaled by 'yarn'"),
        (
            {"llama.rope.scaling.factor": 2.0, "llama.rope.scale_linear": 4.0},
            r"rope.scaling.factor must be the same as llama.rope.scale_linear, 4\.0, not 2\.0",
        ),
        ({"llama.attention.temperature_scale": 0.1}, "temperature_scale, which is not known and m"),
        ({"llama.rope.dimension_count": 8}, "heads of 16 with llama.rope.dimension_count of 8"),
        ({"llama.block_count": 3}, "is 3 by its configuration and 2 by its weights"),
        ({"llama.block_count": None}, "lacks llama.block_count"),
        ({"llama.embedding_length": 32}, "has another shape"),
        (
            {"llama.attention.head_count_kv": [2, 1]},
            "head_count_kv must be the same for all layers",
        ),
        ({"llama.attention.head_count_kv": 3}, "num_key_value_heads must be a divisor"),
        ({"split.count": 2}, "llama-gguf-split --merge"),
        ({"general.type": "adapter"}, "general.type is 'adapter'"),
        ({"tokenizer.ggml.eos_token_id": 300}, "eos_token_id must be .* at most 299"),
        ({"tokenizer.ggml.eot_token_id": 300}, "eot_token_id must be .* at most 299"),
        ({"tokenizer.ggml.eom_token_id": 300}, "eom_token_id must be .* at most 299"),
        ({"tokenizer.ggml.eos_token_ids": [2, 300]}, "eos_token_ids must be .* from 0 to 299"),
        ({"general.alignment": "x"}, "Bad type for general.alignment"),
        ({"general.alignment": 8}, "general.alignment is not 8|where it cannot be"),
        ({"general.alignment": 4096}, "where it cannot be|and the file at"),
    ],
)
def test_what_a_file_may_not_say(values: dict[str, Any], reason: str, tmp_path: Path) -> None:
    path = make("llama", **values).write(tmp_path / "model.gguf")
    with pytest.raises((CheckpointError, UnsupportedModel), match=reason):
        load_runner(path, "native")


@pytest.mark.parametrize(
    "values", [{"attention.head_count_kv": [2, 2]}, {"attention.sliding_window": 0}], ids=str
)
def test_layers_may_each_say_the_same_and_zero_is_no_window(
    values: dict[str, Any], tmp_path: Path
) -> None:
    made = make("llama", **{f"llama.{name}": value for name, value in values.items()})
    check(made, tmp_path / "model.gguf")


def test_a_tensor_of_a_type_that_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    writer = GGUFWriter(path, "llama")
    writer.add_tensor("blk.0.attn_q.weight", np.zeros((1, 18), np.uint8), raw_dtype=Type.IQ4_NL)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(CheckpointError, match=r"blk.0.attn_q.weight in .* is stored as IQ4_NL"):
        Checkpoint.open(str(path), reads_gguf=True)


def test_weights_that_the_model_lacks(small: Path) -> None:
    path = small / "small.gguf"
    path.write_bytes(path.read_bytes().replace(b"ffn_norm", b"ffn_norn"))
    with pytest.raises(CheckpointError, match=r"lacks blk.0.ffn_norm.weight among"):
        load_runner(path, "native")


def test_other_files_under_that_name(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    for content, reason in [
        (b"GG", "does not begin with GGUF"),
        (b"version https://git-lfs", "does not begin with GGUF"),
        (b"GGUF" + (1).to_bytes(4, "little"), "version 1 of GGUF, and 2 and 3 are read"),
        (b"GGUF" + (3).to_bytes(4, "big") + bytes(16), "big endian"),
    ]:
        path.write_bytes(content)
        with pytest.raises(CheckpointError, match=reason) as caught:
            Checkpoint.open(str(path), reads_gguf=True)
        assert "\n" not in str(caught.value)


def described_at(content: bytes, name: bytes) -> int:
    """Return where the place of a matrix is written: after its name, two sides and its type."""
    return content.index(name) + len(name) + 4 + 2 * 8 + 4


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda own, other: other, "where it cannot be"),  # two tensors in one place
        (lambda own, other: own + 2, "where it cannot be"),  # across its numbers
        (lambda own, other: 1 << 40, "and the file at"),
    ],
)
def test_where_a_tensor_may_not_be(
    change: Callable[[int, int], int], reason: str, small: Path
) -> None:
    path = small / "small.gguf"
    content = bytearray(path.read_bytes())
    places = [described_at(content, name) for name in (b"blk.0.ffn_up.weight", b"output.weight")]
    own, other = (int.from_bytes(content[place : place + 8], "little") for place in places)
    content[places[0] : places[0] + 8] = change(own, other).to_bytes(8, "little")
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=reason):
        Checkpoint.open(str(path), reads_gguf=True)


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        (b"blk.0.ffn_up.weight", b"blk.1.ffn_up.weight", "blk.1.ffn_up.weight is there twice"),
        (b"llama.block_count", b"llama.block\ncount", r"'llama.block\\ncount' is no name"),
        (b"llama.block_count\4", b"llama.block_count\x0d", r"13\)? is not a valid GGUFValueType"),
    ],
)
def test_what_a_header_may_not_hold(old: bytes, new: bytes, reason: str, tmp_path: Path) -> None:
    path = make("llama").write(tmp_path / "model.gguf")
    content = path.read_bytes()
    assert content.count(old) == 1
    path.write_bytes(content.replace(old, new))
    with pytest.raises(CheckpointError, match=reason):
        Checkpoint.open(str(path), reads_gguf=True)


def read_everything(path: Path) -> None:
    """Read all that is read of a file before a model is made of it, and every tensor."""
    load_tokenizer(str(path))
    checkpoint = Checkpoint.open(str(path), reads_gguf=True)
    decoder_config(checkpoint)
    weights = open_weights(checkpoint, allow_pickle=False)
    for name, shape in weights.shapes.items():
        weights.take(name, shape)
        if len(shape) == 2:
            weights.quantized(name, (shape[0], shape[1]))


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A file with a tokenizer and quantised weights, which is read without an error."""
    tokens = ["<unk>", "<s>", "</s>", *[f"<0x{byte:02X}>" for byte in range(256)], *ascii_letters]
    values = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens[:300],
        "tokenizer.ggml.scores": [-float(number) for number in range(300)],
        "tokenizer.ggml.token_type": [2, 3, 3, *[6] * 256, *[1] * 41],
        "tokenizer.chat_template": "{{ messages }}",
    }
    path = tmp_path_factory.mktemp("sound") / "model.gguf"
    made = make("llama", Type.Q4_0, **values)
    made.write(path)
    read_everything(path)
    return path.read_bytes()


def check_damage(content: bytes) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder, "model.gguf")
        path.write_bytes(content)
        try:
            read_everything(path)
        except (CheckpointError, UnsupportedModel) as error:
            assert "\n" not in str(error)
            assert len(str(error)) < 1500


@damage.lengths(60, 3000)
def test_damaged_files_are_refused_in_one_line(sound: bytes, examples: int) -> None:
    def check(data: st.DataObject) -> None:
        check_damaged_bytes(sound, data)
        check_odd_numbers(sound, data)

    damage.for_examples(examples, check)


def check_damaged_bytes(sound: bytes, data: st.DataObject) -> None:
    changed = bytearray(sound)
    head = sound.index(b"blk.1.ffn_norm.weight")
    for _ in range(data.draw(st.integers(1, 3))):
        data.draw(damage.byte_changes(len(sound), head))(changed)
    check_damage(bytes(changed))


def check_odd_numbers(sound: bytes, data: st.DataObject) -> None:
    """Eight bytes after a name: of a type and a value, or of sides and their number."""
    places = [found.end() for found in re.finditer(rb"(llama|general|tokenizer|blk)[\w.]+", sound)]
    changed = bytearray(sound)
    place = data.draw(st.sampled_from(places)) + data.draw(st.sampled_from([-30, 0, 4, 8, 12, 16]))
    number = data.draw(st.sampled_from([0, 1, 8, 9, 12, 2**31, 2**32 - 1, 2**62, 2**64 - 1]))
    width = data.draw(st.sampled_from([4, 8]))
    changed[place : place + width] = (number % (1 << 8 * width)).to_bytes(width, "little")
    check_damage(bytes(changed))


def test_a_truncated_file_is_refused(sound: bytes, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    for length in [*range(0, len(sound) - 32, len(sound) // 20), len(sound) - 32]:
        path.write_bytes(sound[:length])
        with pytest.raises(CheckpointError):
            read_everything(path)
