"""The command ``paged-core-vllm check``: what of this vLLM is touched, and what decides."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from paged_core.engine.contexts import EvictorContext, OrderContext, VictimContext
from paged_core.errors import PagedCoreError
from paged_core.plugins.component import ComponentSettings
from paged_core.plugins.registry import Registry

from paged_core_vllm import __version__, surface
from paged_core_vllm.policies import make, refusal
from paged_core_vllm.settings import CARRIED, STAYS, load_settings
from paged_core_vllm.views import CacheView


def components(registry: Registry) -> Iterator[tuple[str, str, str | None]]:
    """Yield slot, name and, unless it can be carried over, the reason of each component."""
    for slot in CARRIED:
        for name, component in registry.of(slot).items():
            yield slot, name, _reason(registry, slot, component.settings.model_validate({}))
    for slot, (own, reason) in STAYS.items():
        for name in registry.of(slot):
            yield slot, name, None if name == own else reason


def _reason(registry: Registry, slot: str, chosen: ComponentSettings) -> str | None:
    """Return why a component cannot decide inside vLLM, or ``None``."""
    cache: Any = CacheView(None, 16, caches_prefixes=True)
    contexts = {
        "queue_order": OrderContext(kv_cache=cache),
        "victim": VictimContext(kv_cache=cache),
        "evictor": EvictorContext(num_blocks=64, block_size=16, seed=0),
    }
    try:
        make(registry, slot, chosen, contexts[slot])
    except PagedCoreError as error:
        return str(error)
    return None


def report() -> dict[str, Any]:
    """Return the surface, the components and the settings; ``ok``: a scheduler would start."""
    found = surface.look()
    told: dict[str, Any] = {
        "vllm": found.release,
        "tested": bool(found.release) and surface.is_tested(found.release or ""),
        "tested_releases": [f"{each}x" for each in surface.TESTED],
        "surface": [
            {
                "attribute": str(each.attribute),
                "use": each.attribute.why,
                "signature": each.signature,
                "needed": each.attribute.is_needed,
                "problem": each.problem,
            }
            for each in found.findings
        ],
        "settings": {},
        "error": None if found.release else "no vLLM is installed in this environment",
    }
    registry = Registry.discover()
    try:
        loaded = load_settings(registry=registry)
        origins = loaded.origins
        told["settings"] = {
            key: {
                "value": value,
                "from": str(origins.get(f"{key}.name") or origins[key]),
            }
            for key, value in loaded.settings.model_dump(mode="json").items()
            if key not in STAYS
        }
        for slot in CARRIED:
            chosen = getattr(loaded.settings, slot)
            if reason := _reason(registry, slot, chosen):
                where = origins[f"{slot}.name"].suffix
                told["error"] = told["error"] or refusal(slot, chosen.name, reason, where)
    except PagedCoreError as error:
        told["error"] = str(error)
    told["components"] = [
        {"slot": slot, "name": name, "problem": problem}
        for slot, name, problem in components(registry)
    ]
    told["ok"] = told["error"] is None and not found.problems
    return told


def _lines(told: dict[str, Any]) -> Iterator[str]:
    tested = "tested" if told["tested"] else f"tested are {', '.join(told['tested_releases'])}"
    yield f"vLLM {told['vllm'] or '-'} ({tested}), paged-core-vllm {__version__}"
    yield "\nwhat is touched"
    for row in told["surface"]:
        state = "ok" if row["problem"] is None else f"PROBLEM: {row['problem']}"
        if row["problem"] is not None and not row["needed"]:
            state = f"not there ({row['use']})"
        yield f"  {row['attribute']:42} {state}  {row['signature']:.90}".rstrip()
    yield "\nwhat can decide there"
    for row in told["components"]:
        yield f"  {row['slot']:16} {row['name']:18} {row['problem'] or 'yes'}"
    yield "\nwhat would decide now"
    for key, row in told["settings"].items():
        yield f"  {key:16} {json.dumps(row['value'])}  ({row['from']})"
    yield f"\n{told['error'] or ('ok' if told['ok'] else 'this vLLM is refused at start')}"


def main(args: Sequence[str] | None = None) -> int:
    """Run the command; 1: a scheduler would not start."""
    parser = argparse.ArgumentParser(prog="paged-core-vllm", description=__doc__)
    commands = parser.add_subparsers(required=True)
    check = commands.add_parser("check", help="what of the installed vLLM is touched, and fits")
    check.add_argument("--json", action="store_true", help="print JSON")
    given = parser.parse_args(args)
    told = report()
    print(json.dumps(told) if given.json else "\n".join(_lines(told)))
    return 0 if told["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
