"""Its difference from other schedulers: no running request waits for longer than a round."""

from itertools import pairwise

from paged_core.interfaces.observer import Observer, StepRecord
from paged_testing import Workload, build_memory_engine, check_served, serve, simple_request


class Turns(Observer):
    """Tokens that each step computes, by request."""

    def __init__(self) -> None:
        self.steps: list[dict[str, int]] = []

    def on_step(self, step: StepRecord, /) -> None:
        self.steps.append(dict(step.scheduled))


def turns(workload: Workload, **settings: object) -> list[dict[str, int]]:
    watch = Turns()
    options = {"name": "round_robin", **settings}
    engine = build_memory_engine(scheduler=options, observers=[watch], num_blocks=200)
    check_served(engine, workload, serve(engine, workload))
    return watch.steps


def test_a_long_prompt_takes_no_more_than_its_quantum_of_a_step() -> None:
    workload = Workload(((0, simple_request("A", 4, 12)), (2, simple_request("B", 40, 4))))
    steps = turns(workload, quantum=8)
    assert all(step["A"] == 1 for step in steps[1:12]), "A decodes in every step"
    assert [step["B"] for step in steps[2:7]] == [8] * 5


def test_every_request_has_a_turn_before_any_has_a_second_one() -> None:
    workload = Workload(tuple((0, simple_request(name, 1, 9)) for name in "ABCDE"))
    steps = turns(workload, max_num_batched_tokens=2, max_num_seqs=5)
    served = [name for step in steps for name in step][10:40]
    for name in "ABCDE":
        places = [place for place, other in enumerate(served) if other == name]
        assert all(later - sooner == 5 for sooner, later in pairwise(places))


def test_small_pools_are_served_whatever_the_victim_and_the_mode_are() -> None:
    workload = Workload(tuple((0, simple_request(name, 7, 12)) for name in "ABC"))
    for victim in ("newest", "most_blocks", "fewest_computed"):
        for preemption in ("recompute", "swap"):
            engine = build_memory_engine(
                scheduler="round_robin", victim=victim, preemption=preemption, num_blocks=8
            )
            check_served(engine, workload, serve(engine, workload))


def test_prompts_that_were_begun_are_finished_before_others_begin() -> None:
    """Neither prompt fits beside the other: the second is not admitted meanwhile."""
    requests = tuple((0, simple_request(name, 32, 1)) for name in "AB")
    watch = Turns()
    engine = build_memory_engine(
        scheduler={"name": "round_robin", "quantum": 4}, observers=[watch], num_blocks=10
    )
    serve(engine, Workload(requests))
    assert [list(step) for step in watch.steps] == [["A"]] * 8 + [["B"]] * 8


def test_what_waits_for_a_step_in_flight_is_left_out() -> None:
    engine = build_memory_engine(scheduler="round_robin")
    for name, n in (("A", 1), ("B", 3), ("C", 1)):
        engine.add(simple_request(name, 6, 4, n=n))
    engine.step()
    _, group, _ = engine.groups
    last = group.live[-1]
    last.num_scheduled = last.num_tokens
    plan = engine.scheduler.schedule(1.0)
    assert [sequence.group.id for sequence in plan.sequences] == ["A", "C"]
    assert not plan.preempted
    assert group in engine.scheduler.queues().running
