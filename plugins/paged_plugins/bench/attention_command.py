"""``paged-core bench attention``: the time of one layer's attention, by component."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Annotated, Any

import typer

from paged_core.cli.options import Given
from paged_core.cli.output import print_json, print_table
from paged_core.errors import SettingsError
from paged_core.interfaces.attention import AttentionBackend, AttentionParts
from paged_core.interfaces.layer import LayerSpec
from paged_core.settings import EngineSettings
from paged_plugins.bench.attention_case import AttentionCase
from paged_plugins.bench.machine import machine
from paged_plugins.bench.progress import progress

_CASES = ("16x255", "1x2047", "1x0+512", "8x512+32")
_WARM_UP = 1


def attention_command(
    given: Given,
    backends: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAMES",
            help="Components, comma-separated or repeated (default: all that are available).",
        ),
    ] = None,
    batch: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SEQUENCESxCACHED+NEW",
            help=f"Sequences and their tokens; may be repeated (default: {', '.join(_CASES)}).",
        ),
    ] = None,
    num_heads: Annotated[int, typer.Option(min=1, help="Query heads.")] = 16,
    num_kv_heads: Annotated[int, typer.Option(min=1, help="Key and value heads.")] = 8,
    head_dim: Annotated[int, typer.Option(min=1, help="Dimension of a head.")] = 128,
    shared_prefix: Annotated[
        int, typer.Option(min=0, help="Cached tokens that all sequences share as a prefix.")
    ] = 0,
    repeats: Annotated[int, typer.Option(min=1, help="Repeats to take the median of.")] = 9,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    output: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the same JSON to a file.")
    ] = None,
) -> None:
    """Measure the attention of a layer, writing its keys and values to the cache included.

    Runs over several layers with separate KV caches, so that none stays in the processor's caches.
    The components are measured in turns. --dtype (default here: bfloat16), --device, --block-size,
    --threads and --deterministic apply to all; --attention selects one, which may have options.
    """
    if num_heads % num_kv_heads:
        raise SettingsError(
            f"--num-heads {num_heads} is not a multiple of --num-kv-heads {num_kv_heads}"
        )
    settings = given.resolve().settings
    layer = LayerSpec(
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        scale=head_dim**-0.5,
        dtype="bfloat16" if settings.dtype == "auto" else settings.dtype,
        device=_device(settings),
        block_size=settings.block_size,
    )
    cases = [AttentionCase.parse(text) for text in batch or _CASES]
    parts, refused = _backends(given, settings, layer, backends)
    rows = list(_rows(parts, layer, cases, shared_prefix, repeats))
    found: dict[str, Any] = {"machine": machine(), "refused": refused, "rows": rows}
    if output is not None:
        output.write_text(json.dumps(found, indent=2) + "\n", "utf-8")
    if as_json:
        print_json(found)
    else:
        _print(layer, found, repeats)


def _print(layer: LayerSpec, found: dict[str, Any], repeats: int) -> None:
    print_table(
        f"Microseconds per layer: {layer.num_heads} heads of {layer.head_dim}, "
        f"{layer.num_kv_heads} for keys, {layer.dtype}, blocks of {layer.block_size}, "
        f"median of {repeats}\n"
        f"{found['machine']['cpu']}, {found['machine']['cores']} cores"
        + "".join(f"\n{name}: {reason}" for name, reason in found["refused"].items()),
        ["batch", "shared prefix", "attention", "us per layer", "GB/s", "GFLOP/s"],
        [
            [
                row["batch"],
                row["shared_prefix"],
                row["attention"],
                f"{row['us_per_layer']:.0f}",
                f"{row['bytes_per_s'] / 1e9:.1f}",
                f"{row['operations_per_s'] / 1e9:.0f}",
            ]
            for row in found["rows"]
        ],
    )


def _device(settings: EngineSettings) -> str:
    import torch

    if settings.threads:
        torch.set_num_threads(settings.threads)
    if settings.device != "auto":
        return settings.device
    return "cuda:0" if torch.cuda.is_available() else "cpu"


def _backends(
    given: Given, settings: EngineSettings, layer: LayerSpec, named: Sequence[str] | None
) -> tuple[dict[str, AttentionBackend], dict[str, str]]:
    """Return the components that support the layer, and the reason why each other does not.

    Raises:
        SettingsError: a named component does not support it, or none does.
        PluginError: a component does not exist.
    """
    chosen = settings.attention
    names = [name for some in named or () for name in some.split(",") if name]
    if not names and chosen.name != "auto":
        names = [chosen.name]
    parts, refused = {}, {}
    for name in dict.fromkeys(names or given.registry.of("attention")):
        component = given.registry.get("attention", name)
        reason = component.obstacle()
        if reason is None:
            own = component.name == chosen.name
            options = chosen if own else component.settings.model_validate({})
            made = component.load()(options, AttentionParts(settings=settings))
            reason = made.check(layer)
        if reason is None:
            parts[component.name] = made
        else:
            refused[component.name] = reason
    if refused and (names or not parts):
        raise SettingsError("; ".join(f"attention {name}: {why}" for name, why in refused.items()))
    return parts, refused


def _rows(
    parts: dict[str, AttentionBackend],
    layer: LayerSpec,
    cases: Sequence[AttentionCase],
    num_shared: int,
    repeats: int,
) -> Iterator[dict[str, Any]]:
    with progress(len(cases) * (repeats + _WARM_UP), "measuring") as advance:
        for case in cases:
            runs = {name: case.runner(part, layer, num_shared) for name, part in parts.items()}
            seconds: dict[str, list[float]] = {name: [] for name in runs}
            for _ in range(repeats + _WARM_UP):
                for name, (run, num_layers) in runs.items():
                    started = perf_counter()
                    run()
                    seconds[name].append((perf_counter() - started) / num_layers)
                advance()
            for name, found in seconds.items():
                taken = median(found[_WARM_UP:])
                yield {
                    "attention": name,
                    "batch": str(case),
                    "num_sequences": case.num_sequences,
                    "cached": case.num_cached,
                    "new": case.num_new,
                    "shared_prefix": min(num_shared, case.num_cached),
                    "num_heads": layer.num_heads,
                    "num_kv_heads": layer.num_kv_heads,
                    "head_dim": layer.head_dim,
                    "block_size": layer.block_size,
                    "dtype": layer.dtype,
                    "us_per_layer": round(taken * 1e6, 2),
                    "bytes_per_s": round(case.read_bytes(layer, num_shared) / taken),
                    "operations_per_s": round(case.operations(layer) / taken),
                    "repeats": repeats,
                }
