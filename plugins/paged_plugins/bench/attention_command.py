"""``paged-core bench attention``: the time of one layer's attention, by component."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from paged_core.cli.options import AsJson, SettingsArgs
from paged_core.cli.output import print_table
from paged_core.engine.contexts import AttentionContext, Maker
from paged_core.errors import SettingsError
from paged_core.interfaces.attention import AttentionBackend
from paged_core.interfaces.layer import LayerSpec
from paged_core.settings.schema import EngineSettings
from paged_plugins.bench.attention_case import BARE, AttentionCase
from paged_plugins.bench.attention_grid import WARM_UP, AttentionGrid, told
from paged_plugins.bench.device import Rates, machine, machine_line, measure_rates
from paged_plugins.command_options import JsonFile, Repeats, report
from paged_plugins.machine import device_of
from paged_plugins.progress import progress

_CASES = ("16x255", "1x2047", "1x0+512", "8x512+32")
_HEADS = "16:8:128"
_FAILED = "it failed"
"""Beginning of the reason of a component that should serve."""
_PATTERN = re.compile(r"(\d+):(\d+):(\d+)")


def attention_command(
    given: SettingsArgs,
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
    heads: Annotated[
        list[str] | None,
        typer.Option(
            metavar="HEADS:KV_HEADS:DIM",
            help=f"Query heads, key/value heads, dimension; may be repeated (default: {_HEADS}).",
        ),
    ] = None,
    shared_prefix: Annotated[
        int, typer.Option(min=0, help="Cached tokens that all sequences share as a prefix.")
    ] = 0,
    bare: Annotated[
        bool,
        typer.Option(
            "--bare",
            help="Also call the attention of PyTorch and of flash-attn on keys and values without "
            "pages, writing nothing.",
        ),
    ] = False,
    roofline: Annotated[
        bool, typer.Option(help="Measure first how fast the device copies and multiplies.")
    ] = True,
    num_layers: Annotated[
        int | None,
        typer.Option(
            "--layers",
            min=1,
            help="Layers to run in turn (default: as many as exceed the caches of the device).",
        ),
    ] = None,
    repeats: Repeats = 9,
    as_json: AsJson = False,
    output: JsonFile = None,
) -> None:
    """Measure the attention of a layer, writing its keys and values to the cache included.

    Runs over several layers with separate KV caches, so that none stays in the caches of the
    device; planning a step, once for all its layers, is measured apart. The components are measured
    in turns. On CUDA, time is that of the device; what can be
    captured in a CUDA graph is also replayed from one, without the launches. --dtype (default here:
    bfloat16), --kv-cache-dtype, --device, --block-size, --threads and --deterministic apply to all;
    --attention selects one, which may have options. Exit status 1: a component failed.
    """
    settings = given.resolve().settings
    if settings.threads:
        import torch

        torch.set_num_threads(settings.threads)
    layers = [_layer(settings, text) for text in dict.fromkeys(heads or [_HEADS])]
    cases = [AttentionCase.parse(text) for text in batch or _CASES]
    served = [_backends(given, settings, layer, backends) for layer in layers]
    rates = measure_rates(layers[0].dtype, layers[0].device) if roofline else None
    grid = AttentionGrid(shared_prefix, num_layers, repeats, rates)
    refused = [why for _, some in served for why in some]
    rows: list[dict[str, Any]] = []
    with progress(len(layers) * len(cases) * (repeats + WARM_UP), "measuring") as advance:
        for layer, (parts, _) in zip(layers, served, strict=True):
            called = []
            for one in BARE if bare else ():
                if problem := one.problem(layer):
                    refused.append(_refusal(f"bare {one.name}", problem, layer))
                else:
                    called.append(one)
            for case in cases:
                rows += grid.rows(case, layer, parts, called, advance)
    found = {"machine": _described(layers[0].device, rates), "refused": refused, "rows": rows}
    report(found, output, as_json, lambda found: _print(found, repeats))
    names = given.registry.of("attention")
    failed = any("error" in row and row["component"] in names for row in rows)
    if failed or any(one["reason"].startswith(_FAILED) for one in refused):
        raise typer.Exit(1)


def _layer(settings: EngineSettings, heads: str) -> LayerSpec:
    """Return the layer with the heads that ``HEADS:KV_HEADS:DIM`` says.

    Raises:
        SettingsError: the text has another form, a number is 0, or the query heads cannot be
            shared evenly.
    """
    found = _PATTERN.fullmatch(heads)
    if found is None or not all(map(int, found.groups())):
        raise SettingsError(
            f"--heads {heads}: give query heads, key/value heads and their dimension, such as "
            "16:8:128"
        )
    num_heads, num_kv_heads, head_dim = map(int, found.groups())
    if num_heads % num_kv_heads:
        raise SettingsError(f"--heads {heads}: {num_heads} is not a multiple of {num_kv_heads}")
    return LayerSpec(
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        scale=head_dim**-0.5,
        dtype="bfloat16" if settings.dtype == "auto" else settings.dtype,
        device=device_of(settings),
        block_size=settings.block_size,
        kv_cache_dtype=settings.kv_cache_dtype,
    )


def _backends(
    given: SettingsArgs, settings: EngineSettings, layer: LayerSpec, named: Sequence[str] | None
) -> tuple[dict[str, AttentionBackend], list[dict[str, str]]]:
    """Return the components that support the layer, and why each of the others does not.

    Raises:
        SettingsError: a named component does not support it, or none does.
        PluginError: a component does not exist.
    """
    chosen = settings.attention
    names = [name for some in named or () for name in some.split(",") if name]
    if not names and chosen.name != "auto":
        names = [chosen.name]
    parts, refused = {}, []
    for name in dict.fromkeys(names or given.registry.of("attention")):
        component = given.registry.get("attention", name)
        own = component.name == chosen.name
        options = chosen if own else component.settings.model_validate({})
        reason = component.unavailable_reason(options)
        if reason is None:
            try:
                given_parts = AttentionContext(
                    settings=settings,
                    registry=given.registry,
                    maker=Maker(settings, given.registry),
                )
                made = component.load()(options, given_parts)
                reason = made.check(layer)
            except Exception as error:  # noqa: BLE001 - one component must not take the others
                reason = f"{_FAILED}: {told(error)}"
        if reason is None:
            parts[component.name] = made
        else:
            refused.append(_refusal(component.name, reason, layer))
    if refused and (names or not parts):
        raise SettingsError(
            "; ".join(f"attention {r['component']}: {r['reason']}" for r in refused)
        )
    return parts, refused


def _refusal(name: str, reason: str, layer: LayerSpec) -> dict[str, str]:
    heads = f"{layer.num_heads}:{layer.num_kv_heads}:{layer.head_dim}"
    return {"component": name, "reason": reason, "heads": heads}


def _described(device: str, rates: Rates | None) -> dict[str, Any]:
    return machine(device) | {
        "device": device,
        "copy_bytes_per_s": rates and round(rates.copy),
        "matmul_operations_per_s": rates and round(rates.sums),
    }


def _print(found: dict[str, Any], repeats: int) -> None:
    computer, rows = found["machine"], found["rows"]
    title = f"Microseconds per layer, median of {repeats}\n{machine_line(computer)}"
    if computer["copy_bytes_per_s"]:
        title += (
            f"\ncopies {computer['copy_bytes_per_s'] / 1e9:.0f} GB/s, multiplies "
            f"{computer['matmul_operations_per_s'] / 1e9:.0f} GFLOP/s"
        )
    for one in found["refused"]:
        title += f"\n{one['component']}, heads {one['heads']}: {one['reason']}"
    for row in rows:
        if "error" in row:
            title += f"\n{row['component']}, batch {row['batch']} failed: {row['error']}"
    columns = ["heads", "dtype, blocks", "batch", "shared prefix", "attention", "us per layer"]
    columns += ["captured", "us to plan", "GB/s", "of copy", "GFLOP/s", "of matmul"]
    print_table(title, columns, [_line(row) for row in rows if "error" not in row])


def _line(row: dict[str, Any]) -> list[object]:
    captured = row["us_per_layer_captured"]
    stored = "" if row["kv_cache_dtype"] == "auto" else f" ({row['kv_cache_dtype']})"
    return [
        f"{row['num_heads']}:{row['num_kv_heads']}:{row['head_dim']}",
        f"{row['dtype']}{stored}, {row['block_size']}",
        row["batch"],
        row["shared_prefix"],
        row["component"],
        f"{row['us_per_layer']:.0f}",
        "-" if captured is None else f"{captured:.0f}",
        f"{row['us_plan']:.0f}",
        f"{row['bytes_per_s'] / 1e9:.1f}",
        _percent(row["share_of_copy"]),
        f"{row['operations_per_s'] / 1e9:.0f}",
        _percent(row["share_of_matmul"]),
    ]


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.0f}%"
