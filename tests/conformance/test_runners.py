"""First-party runners pass the conformance class of their slot."""

from __future__ import annotations

from paged_core.testing import RunnerConformance


class TestNative(RunnerConformance):
    component = "native"


class TestTransformers(RunnerConformance):
    component = "transformers"
