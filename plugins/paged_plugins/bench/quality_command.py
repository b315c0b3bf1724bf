"""``paged-core bench quality``: what quantised weights and a quantised cache do to predictions."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from paged_core.cli.options import Given
from paged_core.cli.output import print_json, print_table
from paged_core.errors import SettingsError
from paged_core.llm import LLM
from paged_core.settings import EngineSettings
from paged_plugins.bench.device import device_of
from paged_plugins.bench.machine import machine, machine_line
from paged_plugins.bench.quality_comparison import compare_predictions
from paged_plugins.bench.quality_engines import QualityEngines
from paged_plugins.bench.quality_text import Window, quality_text, windows_of
from paged_plugins.bench.quality_variants import base_changes, default_variants, quantised_parts
from paged_plugins.bench.variants import Variant, parse_changes, parse_variants
from paged_plugins.output_file import write_json
from paged_plugins.output_option import JsonFile
from paged_plugins.progress import progress

_BASE = "base"


def quality_command(
    given: Given,
    text: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Text in UTF-8 (default: 16 kB of what the demo model was trained on).",
        ),
    ] = None,
    variant: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME={KEY: VALUE}",
            help="Settings to compare with the base, in YAML; may be repeated, and may name "
            "another model (default: the settings of the command, if they quantise, and each kind "
            "of quantised weights and cache that can serve the model here).",
        ),
    ] = None,
    base: Annotated[
        str | None,
        typer.Option(
            metavar="{KEY: VALUE}",
            help="Settings of the base, in YAML, on top of those of the command without "
            "quantisation.",
        ),
    ] = None,
    window: Annotated[
        int | None,
        typer.Option(min=3, help="Tokens of a window (default: 512, or the model's length)."),
    ] = None,
    decode: Annotated[
        int | None,
        typer.Option(
            min=1, help="Tokens at the end of a window to decode (default: a quarter of them)."
        ),
    ] = None,
    limit: Annotated[int, typer.Option(min=2, help="Tokens of the text, at most.")] = 4096,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    output: JsonFile = None,
) -> None:
    """Compare the predictions of quantised weights and caches with those of the model's dtype.

    The text is cut into windows. Of each, the first part is prefilled in chunks, and the last is
    decoded token by token, the text's own token following whatever is predicted. Perplexity and the
    share of equal best tokens are of both parts; differences of logits, and the Kullback-Leibler
    divergence, are of the decoded one. --dtype (default here: bfloat16) and all other settings
    apply to the base and to every variant. All engines are loaded before the first window, each
    with a cache of a few windows.
    """
    named = parse_variants(variant or (), {_BASE})
    content = quality_text(text)
    settings = given.resolve().settings
    with QualityEngines(given, _base(settings, base), window) as engines:
        windows = windows_of(
            content,
            engines.base.get_tokenizer(),
            length=engines.window,
            num_decoded=decode,
            limit=limit,
        )
        for one in named:
            engines.load(one, content)
        for one in () if named else default_variants(settings, given.registry):
            engines.load_if_served(one, content)
        found = _measured(engines, windows) | {
            "machine": machine(device_of(settings)),
            "text": str(text or "the package's own"),
        }
    if output is not None:
        write_json(output, found)
    if as_json:
        print_json(found)
    else:
        _print(found)


def _base(settings: EngineSettings, given: str | None) -> Variant:
    changes = base_changes(settings)
    if given is not None:
        own = parse_changes(given, f"--base {given:.80}")
        if not own:
            raise SettingsError(
                f"--base {given:.80}: write {{KEY: VALUE}}, as in --base '{{dtype: float32}}'"
            )
        changes |= own
    return Variant(_BASE, changes)


def _measured(engines: QualityEngines, windows: Sequence[Window]) -> dict[str, Any]:
    with progress(len(windows) * (1 + len(engines.others)), "windows") as advance:
        figures, rows = compare_predictions(engines.base, engines.others, windows, advance)
    return {
        "tokens": sum(len(one.tokens) for one in windows),
        "windows": len(windows),
        "window": len(windows[0].tokens),
        "decoded": len(windows[0].decoded),
        "base": _described(engines.base) | figures,
        "variants": [row | _described(engines.others[row["name"]]) for row in rows],
        "left_out": [{"name": name, "reason": reason} for name, reason in engines.left_out.items()],
    }


def _described(llm: LLM) -> dict[str, Any]:
    """Return the settings that predictions depend on."""
    settings = llm.settings
    keys = {"model", "dtype", "kv_cache_dtype", "runner", "attention"}
    found = settings.model_dump(mode="json", include=keys)
    return found | {"quantised": quantised_parts(settings)}


def _print(found: dict[str, Any]) -> None:
    base = found["base"]
    formats = ", ".join([base["dtype"], *base["quantised"]])
    title = (
        f"{base['model']} in {formats}: perplexity {base['perplexity']:.6g} over "
        f"{found['tokens']} tokens in windows of {found['window']}, the last {found['decoded']} "
        f"decoded\n{machine_line(found['machine'])}"
    )
    for one in found["left_out"]:
        title += f"\nleft out {one['name']}: {one['reason']}"
    columns = ["variant", "perplexity", "to base", "logits apart: mean", "largest"]
    columns += ["KL divergence: mean", "largest", "same best token"]
    print_table(title, columns, [_line(row) for row in found["variants"]])


def _line(row: dict[str, Any]) -> list[object]:
    return [
        row["name"],
        f"{row['perplexity']:.6g}",
        f"{100 * (row['perplexity_ratio'] - 1):+.2f}%",
        *(f"{row[key]:.4f}" for key in ("logit_difference_mean", "logit_difference_max")),
        *(f"{row[key]:.2e}" for key in ("divergence_mean", "divergence_max")),
        f"{100 * row['same_best_token']:.2f}%",
    ]
