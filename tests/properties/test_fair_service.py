"""The order ``fair``: tenants that always have requests waiting differ in service by a bound."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from paged_core.interfaces.observer import Observer, StepRecord
from paged_core.plugins.registry import Registry
from paged_core.request import Request
from paged_core.sampling_params import SamplingParams
from paged_testing.engines import build_memory_engine
from properties.profile import profile

REGISTRY = Registry.discover()
INPUT, OUTPUT, NUM_SEQS = 1.0, 2.0, 3
LONGEST_PROMPT, LONGEST_ANSWER = 12, 9
SIZES = st.lists(
    st.tuples(st.integers(1, LONGEST_PROMPT), st.integers(1, LONGEST_ANSWER)),
    min_size=1,
    max_size=5,
)


class Service(Observer):
    """Adds up what each request was given."""

    def __init__(self) -> None:
        self.tokens: Counter[str] = Counter()

    def on_step(self, step: StepRecord, /) -> None:
        self.tokens.update(step.scheduled)

    def of(self, requests: list[Request]) -> float:
        """The weighted tokens of some requests."""
        inputs = sum(min(self.tokens[each.id], len(each.prompt)) for each in requests)
        return INPUT * inputs + OUTPUT * (sum(self.tokens[each.id] for each in requests) - inputs)


@profile(40)
@given(sizes=st.fixed_dictionaries({"a": SIZES, "b": SIZES}), weight=st.sampled_from([1.0, 3.0]))
def test_backlogged_tenants_are_served_alike(
    sizes: dict[str, list[tuple[int, int]]], weight: float
) -> None:
    """Sheng et al. (OSDI 2024), section 4: the services that two of them get, by weighted tokens
    and their shares, differ by twice the cost of a prompt, or of the answers of a full batch."""
    service = Service()
    engine = build_memory_engine(
        REGISTRY,
        queue_order={
            "name": "fair",
            "input_weight": INPUT,
            "output_weight": OUTPUT,
            "weights": {"a": weight},
        },
        scheduler={"name": "token_budget", "max_num_seqs": NUM_SEQS},
        block_allocator="uncached",
        observers=[service],
        num_blocks=64,
    )
    bound = 2 * max(INPUT * LONGEST_PROMPT, OUTPUT * NUM_SEQS * LONGEST_ANSWER)
    sent: dict[str, list[Request]] = {"a": [], "b": []}
    live: Counter[str] = Counter()
    for _ in range(120):
        for tenant, shapes in sizes.items():
            while live[tenant] < NUM_SEQS + 2:
                number = len(sent[tenant])
                length, output = shapes[number % len(shapes)]
                request = Request(
                    id=f"{tenant}{number}",
                    prompt=tuple(range(1, length + 1)),
                    sampling=SamplingParams(max_tokens=output, ignore_eos=True),
                    tenant=tenant,
                )
                engine.add(request)
                sent[tenant].append(request)
                live[tenant] += 1
        live.subtract(group.request.tenant for group in engine.step().finished)
        first, second = (service.of(sent[tenant]) for tenant in ("a", "b"))
        assert abs(first / weight - second) <= bound
