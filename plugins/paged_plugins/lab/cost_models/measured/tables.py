"""Tables of kernel times of the package ``aiconfigurator-core``, read where it is installed.

Each is a Parquet file ``systems/data/SYSTEM/KIND/ENGINE/VERSION/NAME_perf.parquet`` with a row for
each shape, and its milliseconds. Nothing of that package is imported: its own reader needs many
times as long as a simulation.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paged_core.errors import SettingsError
from paged_core.settings.documents import parse_yaml, read_text
from paged_plugins.lab.cost_models.model_shape import model_shape
from paged_plugins.lab.settings import MeasuredSettings

PACKAGE = "aiconfigurator_core"
INSTALL = 'pip install "paged-core[gpus]"'

Column = NDArray[Any]


def package_folder() -> Path:
    """Return where the package is installed.

    Raises:
        SettingsError: it is not.
    """
    found = find_spec(PACKAGE)
    if found is None or found.origin is None:
        raise SettingsError(
            "cost_model 'measured' reads times of GPU kernels from the package aiconfigurator-core,"
            f" which is not installed: {INSTALL}"
        )
    return Path(found.origin).parent


def installed_models() -> dict[str, Path]:
    """Return :func:`published_models` of the package; none, if it is not installed."""
    return published_models(package_folder()) if find_spec(PACKAGE) else {}


def published_models(folder: Path) -> dict[str, Path]:
    """Return the models whose ``config.json`` is in the package, by their names on the hub."""
    ending = "_config.json"
    files = sorted((folder / "model_configs").glob(f"*{ending}"))
    return {
        path.name.removesuffix(ending).replace("--", "/"): path
        for path in files
        if not path.name.endswith(f"_hf_quant{ending}")
    }


def unavailable_reason(options: MeasuredSettings, /) -> str | None:
    """Return why there are no times; what is in a folder of one's own is looked at later."""
    missing = [name for name in (PACKAGE, "pyarrow") if find_spec(name) is None]
    if not missing or (options.tables and missing == [PACKAGE]):
        return None
    return f"{missing[0]}, which has times of GPU kernels, is not installed; `{INSTALL}`"


def details() -> str:
    """Say which systems and which models were measured."""
    models = []
    for name, path in installed_models().items():
        with suppress(SettingsError):  # attention of another kind
            model_shape(str(path))
            models.append(name)
    systems = measured_systems(package_folder())
    return f"on {', '.join(systems)}; of {', '.join(models)}"


@dataclass(frozen=True, slots=True)
class System:
    """A kind of GPU, and what it is connected by."""

    name: str
    memory_bytes: int
    bandwidth: float
    """Bytes per second of its own memory."""
    link: float
    """Bytes per second to another GPU of its node, in one direction."""
    host_link: float
    """Bytes per second to the host's memory, in one direction."""


def measured_systems(folder: Path) -> list[str]:
    """Return the names of the systems of which times were measured, sorted."""
    return sorted(path.parent.name for path in (folder / "systems/data").glob("*/gemm"))


def load_system(folder: Path, name: str) -> System:
    """Read the data sheet of a system.

    Raises:
        SettingsError: none is called that, or its file cannot be read.
    """
    known = measured_systems(folder)
    if name not in known:
        raise SettingsError(
            f"cost_model.system: no system is called {name!r}; measured are {', '.join(known)}"
        )
    path = folder / "systems" / f"{name}.yaml"
    try:
        sheet, _ = parse_yaml(read_text(path))
        gpu, node = sheet["gpu"], sheet["node"]
        return System(
            name,
            int(gpu["mem_capacity"]),
            float(gpu["mem_bw"]),
            float(node["intra_node_bw"]),
            float(node["pcie_bw"]),
        )
    except (OSError, LookupError, TypeError, ValueError) as error:
        raise damaged(path, f"it is no data sheet ({error!r:.80})") from None


_RELEASE = f"install the release of aiconfigurator-core that was tested: {INSTALL}"


def damaged(path: Path, reason: str, remedy: str = _RELEASE) -> SettingsError:
    """Return the error of a file that cannot be used."""
    release = installed_release()
    found = f" (aiconfigurator-core {release})" if release and remedy is _RELEASE else ""
    return SettingsError(f"cost_model: {path}{found}: {reason}; {remedy}")


def installed_release() -> str | None:
    """Return the release of the package; ``None``: it is not installed."""
    try:
        return version("aiconfigurator-core")
    except PackageNotFoundError:
        return None


@dataclass(frozen=True)
class Table:
    """Rows of one kind of kernel, by columns of equal length.

    Args:
        path: of the latest file, for messages.
        columns: by name; ``latency`` is in milliseconds.
    """

    path: Path
    columns: Mapping[str, Column]

    def where(self, **values: Any) -> Table:
        """Return the rows in which columns have these values."""
        chosen = np.ones(len(self.columns["latency"]), bool)
        for name, value in values.items():
            chosen &= self.columns[name] == value
        return Table(self.path, {name: each[chosen] for name, each in self.columns.items()})

    @property
    def num_rows(self) -> int:
        return len(self.columns["latency"])

    def choices(self, name: str) -> list[Any]:
        """Return the values of a column, sorted."""
        found: list[Any] = np.unique(self.columns[name]).tolist()
        return found

    def only(self, what: str, **values: Any) -> Table:
        """Return the rows in which columns have these values, of which there must be some: those
        that were measured with the latest release that has any.

        Raises:
            SettingsError: there are none; it names the first value that was not measured.
        """
        rows = self
        for name, value in values.items():
            found = rows.where(**{name: value})
            if not found.num_rows:
                known = ", ".join(map(str, rows.choices(name)))
                given = ", ".join(f"{key} {values[key]}" for key in values if key != name)
                raise SettingsError(
                    f"cost_model: {what} with {name} {value} was not measured"
                    f"{f' ({given})' if given else ''}; {self.path.parent} has {name} {known}"
                )
            rows = found
        order = rows.columns.get(_ORDER)
        return rows if order is None else rows.where(**{_ORDER: order.max()})

    def grid(self, *axes: str) -> tuple[list[list[float]], NDArray[np.float64]]:
        """Return the values of each axis, and the shortest seconds at each point of their grid.

        Of several kernels for one shape the fastest counts: an engine takes that. A point that was
        not measured is NaN.
        """
        lines = [np.unique(self.columns[axis]) for axis in axes]
        seconds = np.full([len(line) for line in lines], np.inf)
        places = [
            np.searchsorted(line, self.columns[a]) for line, a in zip(lines, axes, strict=True)
        ]
        np.minimum.at(seconds, tuple(places), self.columns["latency"] / 1000)
        seconds[np.isinf(seconds)] = np.nan
        return [line.astype(float).tolist() for line in lines], seconds


@dataclass(frozen=True)
class Tables:
    """All tables of one system under one engine, each read when it is first asked for.

    Args:
        folder: of the package.
        system, engine: names of folders in it.
    """

    folder: Path
    system: str
    engine: str

    @cached_property
    def gemm(self) -> Table:
        """Products of an ``m x k`` and a ``k x n`` matrix."""
        return self._read("gemm", "gemm", ("gemm_dtype", "m", "n", "k"))

    def products(self, dtype: str) -> Table:
        """Return the products with weights of a type.

        Block-scaled ones were timed under vLLM with their launches, which take 60 to 300 us however
        few rows there are, and which graphs hide. SGLang's are of the same kernels, without.
        """
        table = self.gemm
        if dtype == "fp8_block":
            table = self._sglang("gemm", "gemm_dtype", dtype) or table
        return table.only("a product", gemm_dtype=dtype)

    def experts_of(self, dtype: str) -> Table:
        """Return the table that has the experts with weights of a type; where inputs have 8 bits
        too, both engines launch one kernel, which was timed under SGLang alone."""
        is_shared = dtype == "w4a8_mxfp4_mxfp8"
        return (is_shared and self._sglang("experts", "moe_dtype", dtype)) or self.experts

    def _sglang(self, table: str, column: str, dtype: str) -> Table | None:
        """SGLang's table of a kernel, for vLLM; ``None``: it has no such times, or is not meant."""
        if self.engine == "vllm":
            with suppress(SettingsError):
                other: Table = getattr(replace(self, engine="sglang"), table)
                return other if dtype in other.choices(column) else None
        return None

    @cached_property
    def prefill(self) -> Table:
        """Attention of ``batch_size`` prompts of ``isl`` tokens."""
        return self._read("attention", "context_attention", _ATTENTION)

    @cached_property
    def decode(self) -> Table:
        """Attention of ``batch_size`` tokens to ``step`` cached ones each."""
        return self._read("attention", "generation_attention", _ATTENTION)

    @cached_property
    def all_reduce(self) -> Table:
        """Sums over ``num_gpus`` of ``message_size`` numbers of 16 bits."""
        return self._read("comm", "custom_allreduce", ("num_gpus", "message_size"))

    @cached_property
    def experts(self) -> Table:
        """Both products of the experts of a layer, for ``num_tokens`` tokens."""
        return self._read("moe", "moe", _EXPERTS)

    @property
    def version(self) -> str:
        """The engine's release that the products were measured with."""
        return self.gemm.path.parent.name

    def _read(self, kind: str, name: str, needed: Sequence[str]) -> Table:
        base = self.folder / "systems/data" / self.system / kind / self.engine
        found = sorted(base.glob(f"*/{name}_perf.parquet"), key=_release)
        if not found:
            engines = sorted(path.name for path in base.parent.glob("*"))
            raise SettingsError(
                f"cost_model.engine: no {name} of {self.engine!r} was measured on {self.system}; "
                f"there is {', '.join(engines) or 'none'}"
            )
        names = (*needed, "latency")
        read = [_read_columns(path, names) for path in found]
        columns = {
            name: np.concatenate([each.columns[name] for each in read]) for name in read[0].columns
        }
        columns[_ORDER] = np.repeat(np.arange(len(read)), [each.num_rows for each in read])
        return Table(found[-1], columns)


_ORDER = "release"
"""Column that is not of a file: the place of its release among all."""
_ATTENTION = (
    *("batch_size", "isl", "num_heads", "num_key_value_heads", "head_dim"),
    *("kv_cache_dtype", "step", "window_size"),
)
_ABSENT = {"window_size": 0}
"""Columns that files of older releases lack, and what all of their rows were measured with."""
_EXPERTS = (
    *("moe_dtype", "num_tokens", "hidden_size", "inter_size", "topk", "num_experts"),
    *("moe_tp_size", "moe_ep_size", "distribution"),
)


def _release(path: Path) -> tuple[int, ...]:
    """The numbers in the name of a folder, by which the latest release is found."""
    return tuple(map(int, re.findall(r"\d+", path.parent.name)))


@lru_cache(maxsize=16)
def _read_columns(path: Path, names: Iterable[str]) -> Table:
    """Read a file, once for all models on a system."""
    pq, failure = arrow("parquet")
    try:
        schema = pq.read_schema(path)
        here = [name for name in names if name in schema.names]
        missing = [name for name in names if name not in here and name not in _ABSENT]
        if missing:
            raise damaged(path, f"it has no column {', '.join(missing)}, so it has another schema")
        read = pq.read_table(path, columns=here)
    except (OSError, failure) as error:
        raise damaged(path, f"it cannot be read ({error})") from None
    columns = {name: read[name].to_numpy() for name in here}
    columns |= {name: np.full(read.num_rows, _ABSENT[name]) for name in names if name not in here}
    latency = columns["latency"]
    if latency.dtype.kind != "f" or not len(latency) or not (latency > 0).all():
        raise damaged(path, "a time in it is no number above 0")
    return Table(path, columns)


def arrow(part: str) -> tuple[Any, type[Exception]]:
    """Return a part of pyarrow, and the error that it raises.

    Raises:
        SettingsError: it is not installed.
    """
    try:
        error: type[Exception] = import_module("pyarrow").ArrowException
        return import_module(f"pyarrow.{part}"), error
    except ImportError:
        raise SettingsError(
            f"cost_model 'measured' needs the package pyarrow, which is not installed: {INSTALL}"
        ) from None
