"""The lengths themselves, with an error that is given: in replays and simulations."""

from __future__ import annotations

from hashlib import blake2b
from math import exp
from statistics import NormalDist
from typing import Literal

from pydantic import Field, NonNegativeFloat

from paged_core.engine.contexts import SlotContext
from paged_core.errors import SettingsError
from paged_core.interfaces.length_predictor import ExpectedLength, LengthPredictor
from paged_core.plugins.component import ComponentSettings
from paged_core.request import Request

_KNOWN = frozenset({"memory", "simulated"})
"""Executors that end a request where its workload says."""


class OracleSettings(ComponentSettings):
    """Options of :class:`OraclePredictor`."""

    name: Literal["oracle"] = "oracle"
    error: NonNegativeFloat = Field(
        default=0.0,
        le=4,
        description="standard deviation of the logarithm of predicted by true length",
    )


class OraclePredictor(LengthPredictor):
    """Knows how many tokens a workload has a request generate, and errs by a drawn factor.

    Workloads say it by ``max_tokens`` with ``ignore_eos``; of other requests nothing is known. The
    logarithm of the factor is normal with the deviation ``error``, and follows from the engine's
    seed and the id of the request.

    Raises:
        SettingsError: the executor runs a model, whose answers end where it ends them.
    """

    def __init__(self, options: OracleSettings, context: SlotContext, /) -> None:
        executor = context.settings.executor.name
        if executor not in _KNOWN:
            raise SettingsError(
                f"length_predictor 'oracle' knows the lengths of replays and simulations alone, "
                f"and executor {executor!r} runs a model; choose history or none"
            )
        self._error, self._seed = options.error, context.settings.seed

    def expect(self, request: Request, /) -> ExpectedLength | None:
        length = request.sampling.max_tokens
        if length is None or not request.sampling.ignore_eos:
            return None
        if not self._error:
            return ExpectedLength(length)
        digest = blake2b(f"{self._seed} {request.id}".encode(), digest_size=6).digest()
        share = (int.from_bytes(digest, "big") + 0.5) / 2**48
        expected = length * exp(self._error * NormalDist().inv_cdf(share))
        return ExpectedLength(expected, expected * self._error)
