"""Make the small ONNX checkpoints in ``tests/data/onnx``, and what their source models generate.

Each is a random model of two layers, exported by the library that its folder names. The libraries
need other packages than this project, so each gets an environment of its own:

    python -m venv /tmp/optimum && /tmp/optimum/bin/pip install torch==2.13.0 \
        'transformers<5' optimum-onnx
    /tmp/optimum/bin/python tools/make_onnx_files.py optimum

    python -m venv /tmp/genai && /tmp/genai/bin/pip install torch==2.13.0 \
        'transformers<6' onnx onnx_ir onnxruntime onnxruntime-genai
    /tmp/genai/bin/python tools/make_onnx_files.py genai

Made with optimum-onnx 0.1.0 (transformers 4.57.6) and onnxruntime-genai 0.18.0 (transformers
5.23.0). A file of 4 bits is compared with what onnxruntime-genai generates from it.
"""

from __future__ import annotations

import json
import string
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

FOLDER = Path(__file__).parents[1] / "tests" / "data" / "onnx"
SPECIAL = ["<pad>", "<s>", "</s>"]
CHARACTERS = [*string.ascii_letters, *string.digits, *string.punctuation, " "]
VOCABULARY = {token: index for index, token in enumerate([*SPECIAL, *CHARACTERS])}
PROMPTS = ("What is paged attention?", "a", "0123456789 " * 3, "copy-on-write")
NUM_TOKENS = 24

COMMON = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": len(VOCABULARY),
    "max_position_embeddings": 96,
    "initializer_range": 0.2,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
GEMMA2 = {
    "head_dim": 16,
    "sliding_window": 8,
    "query_pre_attn_scalar": 4,
    "attn_logit_softcapping": 2.0,
    "final_logit_softcapping": 3.0,
    "tie_word_embeddings": False,  # tied, a random model repeats its last token
}
CONFIGS: dict[str, Callable[[], Any]] = {
    "llama": lambda: transformers.LlamaConfig(**COMMON, head_dim=16),
    "qwen3": lambda: transformers.Qwen3Config(**COMMON, head_dim=16),
    "gemma2": lambda: transformers.Gemma2Config(**COMMON, **GEMMA2),
    "gpt2": lambda: transformers.GPT2Config(
        n_embd=32,
        n_layer=2,
        n_head=4,
        vocab_size=len(VOCABULARY),
        n_positions=96,
        initializer_range=0.2,
        bos_token_id=1,
        eos_token_id=2,
    ),
}

OPTIMUM = ("gpt2", "gemma2")
GENAI = {
    "qwen3": ("fp32", "cpu", ()),
    "gemma2": ("fp32", "cpu", ()),
    "llama-int4": ("int4", "cpu", ()),
    "llama-multi-head": ("fp16", "cpu", ()),
    "llama-paged": ("fp16", "cuda", ("--extra_options", "use_paged_attention=true")),
}


def make_source(name: str, folder: Path) -> None:
    """Save a random model of a family, in float32, with a tokenizer of characters."""
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(CONFIGS[name]()).float()
    with torch.no_grad():
        for parameter in model.parameters():  # biases start at zero, where a lost one is not missed
            if parameter.ndim == 1:
                parameter.add_(torch.randn_like(parameter) * 0.1)
    model.save_pretrained(folder)
    tokenizer = Tokenizer(models.WordLevel(VOCABULARY, unk_token="<pad>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens(SPECIAL)
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", pad_token="<pad>"
    ).save_pretrained(folder)


def encoded(prompt: str) -> list[int]:
    """Return the tokens of a prompt."""
    return [VOCABULARY[character] for character in prompt]


def generated_by_source(folder: Path) -> list[list[int]]:
    """Return what the source model generates greedily, each prompt alone."""
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, attn_implementation="eager"
    ).float()
    outputs = []
    for prompt in PROMPTS:
        tokens = torch.tensor([encoded(prompt)])
        output = model.generate(
            tokens,
            attention_mask=torch.ones_like(tokens),
            max_new_tokens=NUM_TOKENS,
            min_new_tokens=NUM_TOKENS,
            do_sample=False,
            pad_token_id=0,
            eos_token_id=None,
        )
        outputs.append(output[0, tokens.shape[1] :].tolist())
    return outputs


def generated_by_genai(folder: Path) -> list[list[int]]:
    """Return what onnxruntime-genai generates greedily from its own file."""
    import onnxruntime_genai

    model = onnxruntime_genai.Model(str(folder))
    outputs = []
    for prompt in PROMPTS:
        tokens = encoded(prompt)
        params = onnxruntime_genai.GeneratorParams(model)
        length = len(tokens) + NUM_TOKENS
        params.set_search_options(max_length=length, min_length=length, do_sample=False)
        generator = onnxruntime_genai.Generator(model, params)
        generator.append_tokens(tokens)
        while not generator.is_done():
            generator.generate_next_token()
        outputs.append([int(token) for token in generator.get_sequence(0)][len(tokens) :])
    return outputs


def write_expected(folder: Path, outputs: Sequence[Sequence[int]]) -> None:
    """Write what the file must generate, beside it."""
    expected = {"prompts": PROMPTS, "tokens": outputs}
    (folder / "expected.json").write_text(json.dumps(expected) + "\n")


def export_with_optimum(source: Path, folder: Path) -> None:
    """Run ``optimum-cli export onnx``."""
    from optimum.exporters.onnx import main_export

    main_export(str(source), output=str(folder), task="text-generation-with-past")


def export_with_genai(
    source: Path, folder: Path, cache: Path, precision: str, provider: str, extra: Sequence[str]
) -> None:
    """Run onnxruntime-genai's builder."""
    command = [sys.executable, "-m", "onnxruntime_genai.models.builder", "-i", str(source)]
    command += ["-o", str(folder), "-p", precision, "-e", provider, "-c", str(cache), *extra]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def main(library: str) -> None:
    """Make the files of one library."""
    with tempfile.TemporaryDirectory() as temporary:
        work = Path(temporary)
        names = OPTIMUM if library == "optimum" else GENAI
        for name in names:
            family, folder = name.partition("-")[0], FOLDER / f"{library}-{name}"
            source = work / family
            if not source.exists():
                make_source(family, source)
            if library == "optimum":
                export_with_optimum(source, folder)
            else:
                export_with_genai(source, folder, work / "cache", *GENAI[name])
            if name.endswith("int4"):
                write_expected(folder, generated_by_genai(folder))
            else:
                write_expected(folder, generated_by_source(source))


if __name__ == "__main__":
    main(sys.argv[1])
