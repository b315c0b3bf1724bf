"""ONNX files made to keep their reader busy, to take its memory, or to show it other files.

All are loaded by one process whose memory and processor time are limited.
"""

from __future__ import annotations

import json
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from integration.step_driver import load_runner, prompt_logits
from integration.test_damaged_onnx_files import WRITTEN_OUT, add, named
from integration.test_onnx_files import FOLDER
from paged_core.errors import PagedCoreError

_MEMORY = 4 << 30
_SECONDS = 120
"""Of a processor, for all; each takes about a quarter of a second."""

Edit = Callable[[ModelProto], object]


def constant(model: ModelProto, name: str, value: object) -> str:
    model.graph.node.insert(0, _constant(name, value))
    return name


def _constant(name: str, value: object) -> NodeProto:
    tensor = numpy_helper.from_array(np.asarray(value))
    return helper.make_node("Constant", [], [name], f"/{name}", value=tensor)


def read_by_the_head(model: ModelProto, value: str) -> None:
    """Add a value, times zero, to what the head reads, so that it must be computed."""
    head = named(model, "lm_head")
    add(model, "Cast", [value], "as_floats", "/as_floats", to=TensorProto.FLOAT)
    add(model, "ReduceMax", ["as_floats"], "most", "/most", keepdims=0)
    add(model, "Mul", ["most", constant(model, "zero", np.float32(0))], "nothing", "/nothing")
    add(model, "Add", [head.input[0], "nothing"], "head_input", "/head_input")
    head.input[0] = "head_input"


def chain(model: ModelProto, kind: str, first: str, length: int, **attributes: object) -> str:
    """Apply an operator to a value and itself, and so on."""
    before = first
    for index in range(length):
        after = f"{first}.{kind}.{index}"
        add(model, kind, [before, before], after, f"/{after}", **attributes)
        before = after
    return before


# ---------------------------------------------------------------------- walks


def scores_read_twice(model: ModelProto) -> None:
    for softmax in [node for node in model.graph.node if node.op_type == "Softmax"]:
        softmax.input[0] = chain(model, "Add", softmax.input[0], 60)


def scale_of(length: int) -> Edit:
    """Multiply scores by a product of ones."""

    def edit(model: ModelProto) -> None:
        nodes = list(model.graph.node)
        del model.graph.node[:]
        one = chain(model, "Mul", constant(model, "one", np.float32(1)), length)
        for index, node in enumerate(nodes):
            if node.op_type == "Softmax":
                add(model, "Mul", [node.input[0], one], f"scaled.{index}", f"/scaled.{index}")
                node.input[0] = f"scaled.{index}"
            model.graph.node.append(node)

    return edit


# ---------------------------------------------------------------------- other files


def outside(name: str = "secret") -> TensorProto:
    tensor = TensorProto(name="t", data_type=TensorProto.FLOAT, dims=[1], data_location=1)
    tensor.external_data.add(key="location", value=name)
    return tensor


def held(kind: str, attribute: str, value: object) -> Edit:
    def edit(model: ModelProto) -> None:
        node = NodeProto(op_type=kind, name="/held", output=["held"])
        node.attribute.append(helper.make_attribute(attribute, value))
        model.graph.node.insert(0, node)

    return edit


def in_a_branch(model: ModelProto) -> None:
    node = helper.make_node("Constant", [], ["x"], value=outside())
    branch = helper.make_graph([node], "branch", [], [])
    add(model, "If", ["input_ids"], "y", "/choice", then_branch=branch)


def in_a_function(model: ModelProto) -> None:
    function(model, "f", [helper.make_node("Constant", [], ["y"], value=outside())])


def as_a_default(model: ModelProto) -> None:
    function(model, "f", [helper.make_node("Identity", ["x"], ["y"])])
    default = helper.make_attribute("value", outside())
    model.functions[0].attribute_proto.append(default)


def sparse_weight(model: ModelProto) -> None:
    weight = model.graph.sparse_initializer.add(dims=[1 << 30])
    weight.values.CopyFrom(outside())


def memory_as_a_file(model: ModelProto) -> None:
    """What ONNX Runtime takes for an address."""
    weight = model.graph.initializer.add()
    weight.CopyFrom(outside("*/_ORT_MEM_ADDR_/*"))


# ---------------------------------------------------------------------- functions


def function(model: ModelProto, name: str, nodes: list[NodeProto]) -> None:
    opsets = [helper.make_opsetid("f", 1), *model.opset_import]
    model.functions.append(helper.make_function("f", name, ["x"], ["y"], nodes, opsets))
    if all(entry.domain != "f" for entry in model.opset_import):
        model.opset_import.add(domain="f", version=1)


def call(name: str, given: str, made: str) -> NodeProto:
    return helper.make_node(name, [given], [made], f"/{name}/{made}", domain="f")


def called(model: ModelProto, name: str) -> None:
    """Let the head read what a function makes of its input."""
    head = named(model, "lm_head")
    model.graph.node.append(call(name, head.input[0], "called"))
    head.input[0] = "called"


def calling_twice(depth: int) -> Edit:
    def edit(model: ModelProto) -> None:
        function(model, "f0", [helper.make_node("Identity", ["x"], ["y"])])
        for level in range(1, depth):
            inner = f"f{level - 1}"
            function(model, f"f{level}", [call(inner, "x", "t"), call(inner, "t", "y")])
        called(model, f"f{depth - 1}")

    return edit


def calling_deeply(model: ModelProto) -> None:
    """Each is called by the graph first, so that none is deep when it is counted."""
    function(model, "f0", [helper.make_node("Identity", ["x"], ["y"])])
    for level in range(1, 100):
        function(model, f"f{level}", [call(f"f{level - 1}", "x", "y")])
        called(model, f"f{level}")


def calling_each_other(model: ModelProto) -> None:
    function(model, "f", [call("g", "x", "y")])
    function(model, "g", [call("f", "x", "y")])
    called(model, "f")


def called_with_much(model: ModelProto) -> None:
    """A tensor is given once and used 1,000 times."""
    nodes = []
    for index in range(1000):
        node = helper.make_node("Constant", [], [f"c{index}"])
        node.attribute.add(name="value", ref_attr_name="given", type=onnx.AttributeProto.TENSOR)
        nodes.append(node)
    function(model, "f", [*nodes, helper.make_node("Identity", ["x"], ["y"])])
    model.functions[0].attribute.append("given")
    called(model, "f")
    model.graph.node[-1].attribute.append(
        helper.make_attribute("given", numpy_helper.from_array(np.zeros(200_000, np.float32)))
    )


# ---------------------------------------------------------------------- sizes

BILLION = 10**9


def sized(kind: str, *inputs: object, **attributes: object) -> Edit:
    """An operator whose inputs are constants, or names of values."""

    def edit(model: ModelProto) -> None:
        names = [
            value if isinstance(value, str) else constant(model, f"size.{index}", value)
            for index, value in enumerate(inputs)
        ]
        add(model, kind, names, "large", "/large", **attributes)
        read_by_the_head(model, "large")

    return edit


def sum_of_axes(model: ModelProto) -> None:
    """Two axes that are broadcast."""
    row = constant(model, "row", np.zeros((1, 60_000), np.float32))
    column = constant(model, "column", np.zeros((60_000, 1), np.float32))
    add(model, "Add", [row, column], "large", "/large")
    read_by_the_head(model, "large")


def doubled(kind: str, *shape: int, **attributes: object) -> Edit:
    def edit(model: ModelProto) -> None:
        first = constant(model, "first", np.zeros(shape, np.int64))
        read_by_the_head(model, chain(model, kind, first, 40, **attributes))

    return edit


def computed_size(model: ModelProto) -> None:
    """A size that follows from sizes, by operators for fractions."""
    add(model, "Shape", ["input_ids"], "sizes", "/sizes")
    add(model, "Cast", ["sizes"], "numbers", "/numbers", to=TensorProto.FLOAT)
    add(model, "Pow", [constant(model, "base", np.float32(30_000)), "numbers"], "p", "/p")
    add(model, "Cast", ["p"], "shape", "/shape", to=TensorProto.INT64)
    add(model, "ConstantOfShape", ["shape"], "large", "/large")
    add(model, "Expand", ["large", constant(model, "e", [BILLION, 1, 1])], "larger", "/larger")
    read_by_the_head(model, "larger")


def unknown_size(model: ModelProto) -> None:
    add(model, "Erf", [constant(model, "number", np.float32([2]))], "erf", "/erf")
    add(model, "Cast", ["erf"], "shape", "/shape", to=TensorProto.INT64)
    add(model, "ConstantOfShape", ["shape"], "large", "/large")
    read_by_the_head(model, "large")


def many_axes(model: ModelProto) -> None:
    model.graph.initializer.add(name="w", data_type=1, dims=[1] * 100_000)


def without_numbers(model: ModelProto) -> None:
    model.graph.initializer.add(name="w", data_type=1, dims=[BILLION])


def long_list(model: ModelProto) -> None:
    """Inference of a whole graph took each number for an axis."""
    add(model, "Range", [constant(model, n, v) for n, v in (("a", 0), ("b", 10**8), ("c", 1))],
        "list", "/list")  # fmt: skip
    read_by_the_head(model, "list")


def empty_nodes(model: ModelProto) -> None:
    model.graph.node.extend([NodeProto()] * 450_000)


def empty_attributes(model: ModelProto) -> None:
    node = NodeProto(op_type="Identity")
    node.attribute.extend([onnx.AttributeProto()] * 1_000)
    model.graph.node.extend([node] * 450)


def a_long_text(model: ModelProto) -> None:
    model.graph.doc_string = "x" * (33 << 20)


MORE = "makes more of the file than is possible"
OTHER_FILE = "has a tensor in another file|is missing"
OFTEN, DEEP = "so often that they become more", "themselves, or each other more than 50 deep"

REFUSED: Mapping[str, tuple[Edit, str]] = {
    "scores_read_twice": (scores_read_twice, "other logits|cannot be computed"),
    "constant": (held("Constant", "value", outside()), OTHER_FILE),
    "constant_of_an_absolute_place": (
        held("Constant", "value", outside("/etc/passwd")),
        "not in its folder",
    ),
    "several_tensors": (held("Unheard", "values", [outside()]), OTHER_FILE),
    "value_of_a_shape": (held("ConstantOfShape", "value", outside()), OTHER_FILE),
    "sparse_constant": (
        held("Constant", "sparse_value", onnx.SparseTensorProto(values=outside())),
        "holds a sparse tensor",
    ),
    "in_a_branch": (in_a_branch, "chooses between graphs"),
    "in_a_function": (in_a_function, OTHER_FILE),
    "as_a_default": (as_a_default, OTHER_FILE),
    "sparse_weight": (sparse_weight, "weights as sparse tensors"),
    "memory_as_a_file": (memory_as_a_file, "not in its folder"),
    "calling_twice": (calling_twice(40), OFTEN),
    "calling_deeply": (calling_deeply, DEEP),
    "calling_each_other": (calling_each_other, DEEP),
    "called_with_much": (called_with_much, OFTEN),
    "ConstantOfShape": (sized("ConstantOfShape", [BILLION]), MORE),
    "Range": (sized("Range", 0, BILLION, 1), MORE),
    "Expand": (sized("Expand", np.float32([1]), [BILLION, 2]), MORE),
    "Expand_of_tokens": (sized("Expand", "input_ids", [BILLION, 1, 1]), MORE),
    "Tile": (sized("Tile", "input_ids", [1, BILLION]), MORE),
    "Pad": (sized("Pad", "input_ids", [0, BILLION, 0, BILLION]), MORE),
    "OneHot": (sized("OneHot", "input_ids", BILLION, [0, 1]), MORE),
    "Resize": (sized("Resize", np.float32([[1]]), "", "", [BILLION, 2]), MORE),
    "RandomNormal": (sized("RandomNormal", shape=[BILLION]), MORE),
    "HannWindow": (sized("HannWindow", BILLION), MORE),
    "Einsum": (sized("Einsum", *[np.ones(300, np.float32)] * 5, equation="a,b,c,d,e->abcde"), MORE),
    "sum_of_axes": (sum_of_axes, MORE),
    "Concat": (doubled("Concat", 2, axis=0), MORE),
    "Gather": (doubled("Gather", 1, 1), "makes a value with 17 axes"),
    "StringConcat": (sized("StringConcat", "input_ids", "input_ids"), "size cannot be told"),
    "computed_size": (computed_size, MORE),
    "unknown_size": (unknown_size, "has a size that cannot be told"),
    "long_list": (long_list, MORE),
    "empty_nodes": (empty_nodes, "more than 400000 nodes, attributes and values"),
    "empty_attributes": (empty_attributes, "more than 400000 nodes, attributes and values"),
    "a_long_text": (a_long_text, "bytes of it are no numbers of weights"),
    "many_axes": (many_axes, "no known type or shape"),
    "without_numbers": (without_numbers, "larger than the file"),
}
SERVED: Mapping[str, Edit] = {
    "scale_of_60": scale_of(60),
    "scale_of_2000": scale_of(2000),
    "calling_twice_8": calling_twice(8),
    "a_small_list": sized("Range", 0, 1000, 1),
}

_CHILD = """
import json, sys
from integration.step_driver import load_runner, prompt_logits
from integration.test_hostile_onnx_files import PROMPT, problem
for folder in sys.argv[1:]:
    print(json.dumps(problem(folder)), flush=True)
"""
PROMPT = [3, 5, 7, 11]


def problem(folder: str) -> str | None:
    """Return how a folder is refused; ``None``: it is served."""
    try:
        load_runner(Path(folder), "onnxruntime")
    except PagedCoreError as error:
        return str(error)
    return None


def save(edit: Edit, folder: Path) -> Path:
    shutil.copytree(FOLDER / WRITTEN_OUT, folder)
    model = onnx.load(folder / "model.onnx")
    edit(model)
    (folder / "model.onnx").write_bytes(model.SerializeToString())
    return folder


@pytest.fixture(scope="module")
def problems(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, str | None]:
    """How each file is refused; those behind one that ended the process are missing."""
    place = tmp_path_factory.mktemp("hostile")
    edits = {name: edit for name, (edit, _) in REFUSED.items()} | SERVED
    folders = [str(save(edit, place / name)) for name, edit in edits.items()]
    (place / "secret").write_bytes(b"\0\0\x80\x3f")

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_DATA, (_MEMORY, _MEMORY))
        resource.setrlimit(resource.RLIMIT_CPU, (_SECONDS, _SECONDS))

    process = subprocess.run(
        [sys.executable, "-c", _CHILD, *folders],
        cwd=place,
        env={"PYTHONPATH": str(Path(__file__).parents[1]), "PATH": ""},
        stdout=subprocess.PIPE,
        preexec_fn=limit,
        check=False,
    )
    answers = map(json.loads, process.stdout.splitlines())
    return dict(zip(edits, answers, strict=False))


@pytest.mark.parametrize("name", REFUSED)
def test_it_is_refused_in_one_line(name: str, problems: Mapping[str, str | None]) -> None:
    assert name in problems, "the process has died, of this or another file"
    said = problems[name] or ""
    assert "\n" not in said
    with pytest.raises(ValueError, match=REFUSED[name][1]):
        raise ValueError(said)


@pytest.mark.parametrize("name", SERVED)
def test_it_is_served(name: str, problems: Mapping[str, str | None]) -> None:
    assert problems.get(name, "the process has died") is None


def test_a_function_computes_what_its_nodes_do(tmp_path: Path) -> None:
    plain = prompt_logits(load_runner(FOLDER / WRITTEN_OUT, "onnxruntime"), PROMPT)
    folder = save(calling_twice(4), tmp_path / "model")
    assert (prompt_logits(load_runner(folder, "onnxruntime"), PROMPT) - plain).abs().max() < 1e-6
