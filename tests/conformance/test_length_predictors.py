"""First-party length predictors pass the conformance class of their slot."""

from __future__ import annotations

from paged_core.interfaces.length_predictor import ExpectedLength
from paged_core.request import Request
from paged_testing import LengthPredictorConformance


class TestNone(LengthPredictorConformance):
    component = "none"


class TestOracle(LengthPredictorConformance):
    component = "oracle"

    def expected(self, request: Request, /) -> ExpectedLength | None:
        length = request.sampling.max_tokens
        return ExpectedLength(length) if length and request.sampling.ignore_eos else None


class TestOracleThatErrs(LengthPredictorConformance):
    component = {"name": "oracle", "error": 1.0}  # noqa: RUF012


class TestHistory(LengthPredictorConformance):
    component = {"name": "history", "max_entries": 16}  # noqa: RUF012
