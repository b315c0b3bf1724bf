"""Ablations: what their files may say, and the arms that they have."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from architecture.snippets import ROOT
from paged_core.errors import SettingsError
from paged_core.plugins.registry import Registry
from paged_plugins.lab.commands.studies import beginning
from paged_plugins.lab.study.arms import layer, plan_arms
from paged_plugins.lab.study.study import read_study
from unit.studies import write

pytestmark = pytest.mark.heavy


REGISTRY = Registry.discover()


def labels(product: bool = False, base: dict[str, Any] | None = None, **axes: Any) -> list[str]:
    made = plan_arms([layer(base or {})], axes, REGISTRY, product=product)
    return [one.arm.label for one in made]


EXAMPLES = ROOT / "examples"


@pytest.mark.parametrize(
    "path",
    [
        EXAMPLES / "ablation.yaml",
        *EXAMPLES.glob("studies/*.yaml"),
    ],
    ids=lambda path: path.stem,
)
def test_studies_that_are_shown_can_be_run(path: Path) -> None:
    assert read_study(path, REGISTRY)


def test_one_axis_is_varied_at_a_time() -> None:
    axes = {"evictor": ["lru", "slru"], "num_blocks": [64, 128]}
    assert labels(base={"num_blocks": 64}, **axes) == ["base", "evictor=slru", "num_blocks=128"]


def test_the_base_says_what_it_has_of_each_axis() -> None:
    found = plan_arms([], {"evictor": ["lru", "slru"], "block_size": [32]}, REGISTRY)
    assert found[0].arm.held == {"evictor": "lru"}


def test_a_product_has_all_combinations_once() -> None:
    axes = {"evictor": ["slru", "lru"], "num_blocks": [64, 128]}
    assert labels(True, base={"num_blocks": 64}, **axes) == [
        *("base", "num_blocks=128", "evictor=slru", "evictor=slru, num_blocks=128"),
    ]
    assert labels(True, **axes) == [  # the base has no number of blocks
        *("base", "num_blocks=64", "num_blocks=128"),
        *("evictor=slru, num_blocks=64", "evictor=slru, num_blocks=128"),
    ]


def test_a_value_may_be_a_table_and_a_key_dotted() -> None:
    limited = {"name": "iteration_level", "max_num_seqs": 4}
    found = plan_arms(
        [layer({"scheduler": {"name": "token_budget", "max_num_seqs": 8}})],
        {"scheduler": [limited, "token_budget"], "scheduler.max_num_seqs": [8, 16]},
        REGISTRY,
    )
    assert [one.arm.label for one in found] == [
        *(
            "base",
            "scheduler={name: iteration_level, max_num_seqs: 4}",
            "scheduler.max_num_seqs=16",
        ),
    ]
    assert [one.settings.scheduler.max_num_seqs for one in found] == [8, 4, 16]  # type: ignore[attr-defined]
    assert found[1].arm.changes == {"scheduler": limited}
    assert found[2].arm.axis == "scheduler.max_num_seqs"


def test_arms_of_a_product_that_change_one_setting_belong_to_its_axis() -> None:
    found = plan_arms([], {"evictor": ["slru"], "block_size": [16, 32]}, REGISTRY, product=True)
    assert [one.arm.axis for one in found] == [None, "evictor", None]
    found = plan_arms(
        [], {"evictor": ["lru", "slru"], "block_size": [16, 32]}, REGISTRY, product=True
    )
    assert [one.arm.axis for one in found] == [None, "block_size", "evictor", None]


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"axis": {}}, "axis: no such key; did you mean 'axes'?"),
        ({"axes": {"victim": []}}, "axes.victim: List should have at least 1 item"),
        ({"axes": ["victim"]}, "axes: give a table, not a list (line"),
        ({"axes": {"victim": "newest"}}, "axes.victim: give a list, not 'newest' (line"),
        (
            {"base": {"num_blocks:64": None}},
            "num_blocks:64: no such setting; write a space",
        ),
        (
            {"axes": {"victim": ["newest", {"name:x": None}]}},
            "option; write a space after the",
        ),
        ({"axes": {"victim": ["newst"]}}, "no victim is called 'newst'; did you mean"),
        ({"axes": {"a.b.c": [1]}}, "'a.b.c' is no setting"),
        ({"axes": {"evictor": ["lru", "lru"]}}, "axes: evictor=lru and evictor=lru are the same"),
        (
            {"axes": {"victim": ["newest", {"name": "newest"}]}, "product": True},
            "victim=newest and victim={name: newest} are the same settings; leave one out",
        ),
        ({"axes": {"num_blocks": [0]}}, "not 0 (arm num_blocks=0, line 6)"),
        ({"base": {"num_block": 3}}, "num_block: no such setting; did you mean"),
        ({"base": {"executor": "simulated"}}, "write `executor` beside `base`, not in it"),
        ({"axes": {"replicas": [2, 4]}}, "axes.replicas: all arms have as many; write `replicas"),
        ({"seeds": 0}, "seeds: give 1 to"),
        ({"seeds": [1, 0, 0]}, "seeds: 0 is given twice; leave one out (line"),
        ({"seeds": "two"}, "seeds: give a number of seeds, or a list of them, not 'two'"),
        ({"replicas": "many"}, "replicas: give a whole number, not 'many'"),
        ({"seeds": 90_000}, "up to 450,000 runs"),
        ({"slo": {"ttft_ms": -1}}, "slo: its times are milliseconds above 0"),
        ({"slo": {"ttft": 1}}, "slo.ttft: no such key; did you mean 'ttft_ms'? (line"),
        ({"load": [0.5, "x"]}, "load.1: give a number, not 'x'"),
        (
            {"cost_model": {"name": "roofline", "device": "h1000"}},
            "no device is called 'h1000'; did you mean 'h100'? (arm base)",
        ),
        (
            {"axes": {"cost_model": ["linear", {"name": "linear", "file": "gone.yaml"}]}},
            "(arm cost_model={name: linear, file: gone.yaml})",
        ),
        (
            {
                "base": {},
                "cost_model": "roofline",
                "axes": {"cost_model.model": ["llama-3.1-8b", "llama-3.1-70b"]},
            },
            "(arm cost_model.model=llama-3.1-70b)",
        ),
        ({"workloads": []}, "workloads: name one at least"),
        ({"workloads": ["caht"]}, "no workload is called 'caht'"),
        ({"workloads": ["chat", "chat"]}, "two workloads are called 'chat'"),
    ],
)
def test_a_wrong_file_is_refused_in_one_line(
    tmp_path: Path, changes: dict[str, Any], problem: str
) -> None:
    path = write(tmp_path, **changes)
    with pytest.raises(SettingsError) as error:
        read_study(path, REGISTRY)
    message = str(error.value)
    assert problem in message
    assert message.startswith(str(path))
    assert len(message.splitlines()) == 1


@pytest.mark.parametrize("text", ["base: [", "- 1", "", "a: 1\na: 2"])
def test_what_is_no_mapping_in_yaml_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "study.yaml"
    path.write_text(text, "utf-8")
    with pytest.raises(SettingsError, match=r"study\.yaml"):
        read_study(path, REGISTRY)


def test_a_study_without_another_arm_says_so(tmp_path: Path) -> None:
    study = read_study(write(tmp_path, axes={"victim": ["newest"]}), REGISTRY)
    assert "nothing is compared, as no value of `axes` differs" in beginning(study, 2, 1)


def test_real_runs_that_share_the_machine_are_no_measure(tmp_path: Path) -> None:
    study = read_study(write(tmp_path, executor="local"), REGISTRY)
    assert beginning(study, 6, 1).endswith("; one at a time, as they are timed on this machine")
    assert beginning(study, 6, 2).endswith("share the machine: their times are no measure")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "axes: {evictor: [lru]}\nworkloads:\n  - chat\n  - name: b\n    lenghts: 3\n",
            "workloads.1.lenghts: no such key; did you mean 'lengths'? (line 5)",
        ),
        (
            "base:\n  block_sise: 3\naxes: {evictor: [lru]}\nworkloads: [chat]\n",
            "did you mean 'block_size'? (base, line 2)",
        ),
        (
            "base: {block_size: 8}\ncost_model:\n  name: rofline\naxes: {}\nworkloads: [chat]\n",
            "did you mean 'roofline'? (cost_model, line 2)",
        ),
        (
            "axes: {evictor: [lru]}\nworkloads:\n- chatt\n",
            "there is no such file; did you mean 'chat'? (line 3)",
        ),
        (
            "name: mine\nlengths: {prompt: 1, output: 1}\n",
            "this is a workload: give it to `paged-core compare`",
        ),
    ],
)
def test_mistakes_in_a_file_have_their_line_and_a_suggestion(
    tmp_path: Path, text: str, message: str
) -> None:
    path = tmp_path / "ablation.yaml"
    path.write_text(text, "utf-8")
    with pytest.raises(SettingsError) as caught:
        read_study(path, REGISTRY)
    assert message in str(caught.value)
