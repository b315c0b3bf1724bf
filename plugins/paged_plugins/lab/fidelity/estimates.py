"""AIConfigurator's own estimate of a served run, computed by the package that has the tables."""

from __future__ import annotations

import logging
from functools import cache
from importlib import import_module
from typing import Any

from paged_plugins.lab.cost_models.measured.tables import PACKAGE
from paged_plugins.lab.fidelity.closed_loop import Times
from paged_plugins.lab.fidelity.served_rows import ServedRow
from paged_plugins.lab.fidelity.servers import published_name


def aiconfigurator_estimate(row: ServedRow) -> Times | str:
    """Return the times that AIConfigurator estimates for a row, or why it does not.

    Its estimate is that of one engine that prefills and decodes, with one prompt at a time in a
    step. It knows no queue; its constants were chosen by all of these rows.
    """
    try:
        model, backend, tables, runtime = _estimator(
            row.engine,
            row.system,
            row.model,
            row.tensor_parallel,
            row.expert_parallel,
            row.quantized["gemm"],
            row.quantized["moe"],
        )
        asked = runtime(batch_size=row.clients, isl=row.isl, osl=row.osl)
        found = backend.run_agg(model, tables, asked, ctx_tokens=row.isl).get_summary_df().iloc[0]
        return Times(float(found["ttft"]), float(found["tpot"]))
    except Exception as error:  # noqa: BLE001 - another package's; its reason is told
        return str(error).partition("\n")[0][:160] or type(error).__name__


@cache
def _estimator(
    engine: str,
    system: str,
    model: str,
    tensor_parallel: int,
    expert_parallel: int,
    gemm: str,
    moe: str,
) -> tuple[Any, Any, Any, Any]:
    """The parts of an estimate that rows share; they take seconds to make."""
    logging.disable(logging.WARNING)

    def module(name: str) -> Any:
        return import_module(f"{PACKAGE}.sdk.{name}")

    config = module("config_builders").build_model_config(
        tensor_parallel,
        1,
        1,
        tensor_parallel // expert_parallel,
        expert_parallel,
        gemm_quant_mode=gemm or None,
        moe_quant_mode=moe or None,
    )
    databases = module("perf_database")
    release = databases.get_latest_database_version(system, engine)
    named = module("models").get_model(published_name(model), config, engine)
    backend = module("backends.factory").get_backend(engine)
    tables = databases.get_database(system, engine, release)
    return named, backend, tables, module("config").RuntimeConfig
