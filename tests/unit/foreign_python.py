"""A Python that finds the standard library and one made-up package, as that of another environment.

Nothing that is installed beside us can be imported there.
"""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

VLLM = '''
"""A fake of vLLM: generates the sum of all tokens, and reports what was imported before it."""
import os
import sys
from types import SimpleNamespace

roots = {name.partition(".")[0] for name in sys.modules}
others = sorted(roots - set(sys.stdlib_module_names) - {"__main__", "vllm"})
__version__ = f"{'+'.join(others)} {os.environ['VLLM_CPU_KVCACHE_SPACE']} GiB"


SamplingParams = SimpleNamespace


class LLM:
    def __init__(self, model, max_model_len, **options):
        print(f"what libraries print, {max_model_len} tokens")
        if model == "broken":
            raise ValueError("cannot load it")
        if model == "dead":
            os._exit(3)

    def generate(self, prompts, sampling, use_tqdm):
        totals = [sum(prompt["prompt_token_ids"]) for prompt in prompts]
        return [
            SimpleNamespace(outputs=[SimpleNamespace(token_ids=[total % 50] * params.max_tokens)])
            for total, params in zip(totals, sampling)
        ]
'''


def make(folder: Path) -> str:
    """Return the path of a Python in ``folder`` that finds the package above as ``vllm``."""
    packages = folder / "packages"
    packages.mkdir()
    (packages / "vllm.py").write_text(VLLM, "utf-8")
    python = folder / "python"
    # -S: what is installed beside this Python is not found
    python.write_text(
        f'#!/bin/sh\nPYTHONPATH={shlex.quote(str(packages))} exec {sys.executable} -S "$@"\n',
        "utf-8",
    )
    python.chmod(0o755)
    return str(python)
