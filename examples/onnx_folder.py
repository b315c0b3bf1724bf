"""Serve an ONNX folder: prompts on standard input, a line each; answers as they end.

    python examples/onnx_folder.py FOLDER --max-tokens 32 < prompts.txt

The folder is one that optimum or onnxruntime-genai's builder wrote: a graph, its configuration and
a tokenizer. All prompts are in one batch over the engine's paged cache, so those that begin alike
share blocks. Needs the extra ``onnx``.
"""

from __future__ import annotations

import argparse
import sys

from paged_core import LLM, SamplingParams


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder")
    parser.add_argument("--max-tokens", type=int, default=64)
    options = parser.parse_args()
    prompts = [line.rstrip("\n") for line in sys.stdin if line.strip()]
    sampling = SamplingParams(temperature=0.0, max_tokens=options.max_tokens)
    with LLM(options.folder, runner="onnxruntime") as llm:
        for generation in llm.run(llm.submit(prompts, sampling)):
            output = generation.output()
            sys.stdout.write(f"{output.prompt!r}: {output.outputs[0].text!r}\n")
            sys.stdout.flush()
        metrics = llm.get_metrics()
    sys.stderr.write(
        f"{metrics.num_finished} answers in {metrics.num_steps} steps; "
        f"{metrics.num_cached_tokens} of {metrics.num_prompt_tokens} prompt tokens were cached\n"
    )


if __name__ == "__main__":
    main()
