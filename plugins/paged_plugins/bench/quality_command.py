"""``paged-core bench quality``: predictions with quantised weights and a quantised cache."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, get_args

import typer

from paged_core.cli.options import AsJson, SettingsArgs
from paged_core.cli.output import print_table
from paged_core.errors import SettingsError
from paged_core.llm import LLM
from paged_core.plugins.component import ComponentSettings
from paged_core.plugins.registry import Registry
from paged_core.settings.schema import EngineSettings
from paged_plugins.bench.device import machine, machine_line
from paged_plugins.bench.quality_engines import (
    QualityEngines,
    Variant,
    Window,
    parse_changes,
    parse_variants,
    quality_text,
    windows_of,
)
from paged_plugins.bench.quality_scores import compare_predictions
from paged_plugins.command_options import JsonFile, report
from paged_plugins.machine import device_of
from paged_plugins.progress import progress

_BASE = "base"
_QUANTIZATION = "quantization"
"""The option of a runner that says in how many bits it keeps weights; ``off``: as they are."""
_CACHE = "kv_cache_dtype"
"""The setting that says how keys and values are stored; ``auto``: in the model's dtype."""


def quality_command(
    given: SettingsArgs,
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
    as_json: AsJson = False,
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
    report(found, output, as_json, _print)


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
        f"{100 * (row['perplexity_ratio'] - 1):+.2f}% ± {100 * row['perplexity_ratio_error']:.2f}%",
        *(f"{row[key]:.4f}" for key in ("logit_difference_mean", "logit_difference_max")),
        *(f"{row[key]:.2e}" for key in ("divergence_mean", "divergence_max")),
        f"{100 * row['same_best_token']:.2f}%",
    ]


def base_changes(settings: EngineSettings) -> dict[str, Any]:
    """Return what takes quantised weights and a quantised cache back to the model's dtype."""
    changes: dict[str, Any] = {_CACHE: "auto"}
    if _QUANTIZATION in type(settings.runner).model_fields:
        changes["runner"] = {"name": settings.runner.name, _QUANTIZATION: "off"}
    return changes


def quantised_parts(settings: EngineSettings) -> list[str]:
    """Return what the settings quantise, as in ``["int8 weights", "fp8_e4m3 cache"]``."""
    weights = getattr(settings.runner, _QUANTIZATION, "off")
    cache = settings.kv_cache_dtype
    return [f"{weights} weights"] * (weights != "off") + [f"{cache} cache"] * (cache != "auto")


def default_variants(settings: EngineSettings, registry: Registry) -> list[Variant]:
    """Return a variant for the settings of the command, if they quantise anything, and one for
    each kind of weights and of cache that there is, one at a time.

    Weights are those of the chosen runner; with ``auto``, of the runner of the highest rank that
    quantises any.
    """
    found = []
    if quantised_parts(settings):
        found.append(Variant("as given", {}))
    base = base_changes(settings)
    for options in _quantising(settings, registry)[:1]:
        for value in _values(options, _QUANTIZATION, "off"):
            table = {"name": options.model_fields["name"].default, _QUANTIZATION: value}
            found.append(Variant(value, base | {"runner": table}))
    caches = _values(type(settings), _CACHE, "auto")
    return found + [Variant(f"{value} cache", base | {_CACHE: value}) for value in caches]


def _quantising(settings: EngineSettings, registry: Registry) -> list[type[ComponentSettings]]:
    """Return the options of the runners that may quantise, best first."""
    if settings.runner.name == "auto":
        classes = [component.settings for component in registry.candidates("runner")]
    else:
        classes = [type(settings.runner)]
    return [options for options in classes if _QUANTIZATION in options.model_fields]


def _values(model: Any, key: str, none: str) -> list[str]:
    """Return what a setting may be other than ``none``."""
    return [value for value in get_args(model.model_fields[key].annotation) if value != none]
