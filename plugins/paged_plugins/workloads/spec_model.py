"""What the parts of a workload specification have in common: how they are written and checked."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, SerializerFunctionWrapHandler, model_serializer
from pydantic_core import PydanticCustomError


class SpecModel(BaseModel):
    """A part of a specification: frozen, comparable, picklable; unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Kind(SpecModel):
    """One of several kinds of a part, written ``KIND`` or ``{KIND: {its keys}}``.

    A subclass makes ``kind`` a literal with its name.
    """

    kind: str

    @model_serializer(mode="wrap")
    def _as_written(self, fields: SerializerFunctionWrapHandler) -> Any:
        values = fields(self)
        values.pop("kind", None)
        return {self.kind: values} if values else self.kind


def kind_reader(
    short: Mapping[str, Callable[[Any], Mapping[str, Any]]], bare: str | None = None
) -> Callable[[Any], Any]:
    """Return what reads ``KIND``, ``{KIND: {keys}}`` and short forms as pydantic wants them.

    Args:
        short: by kind, the keys that a value which is no mapping stands for: ``{interval: 0.5}``.
        bare: the kind that a bare number is.
    """

    def read(value: Any) -> Any:
        if isinstance(value, Kind):
            return value
        if isinstance(value, str):
            return {"kind": value}
        if bare is not None and isinstance(value, int | float) and not isinstance(value, bool):
            return {"kind": bare, **short[bare](value)}
        if not isinstance(value, Mapping) or len(value) != 1:
            raise PydanticCustomError("kind", "give one kind, as in `kind: {key: value}`")
        ((kind, options),) = value.items()
        if options is None:
            return {"kind": kind}
        if isinstance(options, Mapping):
            if "kind" in options:
                raise PydanticCustomError("kind", "there is no key `kind`")
            return {"kind": kind, **options}
        if kind not in short:
            raise PydanticCustomError("kind", "give the keys of this kind, as in `{key: value}`")
        return {"kind": kind, **short[kind](options)}

    return read


def pair(first: str, second: str) -> Callable[[Any], Mapping[str, Any]]:
    """Return what reads ``[A, B]`` as the keys ``first`` and ``second``."""

    def read(value: Any) -> Mapping[str, Any]:
        if not isinstance(value, list | tuple) or len(value) != 2:
            raise PydanticCustomError("pair", "give two numbers, as in `[1, 8]`")
        return {first: value[0], second: value[1]}

    return read


def single(key: str) -> Callable[[Any], Mapping[str, Any]]:
    """Return what reads a value as the one of ``key``."""
    return lambda value: {key: value}
