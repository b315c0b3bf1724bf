"""First-party admissions pass the conformance class of their slot."""

from __future__ import annotations

from paged_testing import AdmissionConformance


class TestAlways(AdmissionConformance):
    component = "always"


class TestBounded(AdmissionConformance):
    component = {"name": "bounded", "max_waiting_requests": 2}  # noqa: RUF012


class TestDeadline(AdmissionConformance):
    component = {"name": "deadline", "default_slo": 9.0}  # noqa: RUF012


class TestTokenBucket(AdmissionConformance):
    component = {"name": "token_bucket", "burst": 2}  # noqa: RUF012


class TestTokenBucketThatHolds(AdmissionConformance):
    component = {  # noqa: RUF012
        "name": "token_bucket",
        "counts": "prompt_tokens",
        "burst": 16,
        "over": "hold",
    }
