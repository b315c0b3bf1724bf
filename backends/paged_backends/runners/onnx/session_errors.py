"""Errors of ONNX Runtime in one line: what is wrong and with which node, without C++."""

from __future__ import annotations

import re

from onnxruntime.capi import onnxruntime_pybind11_state as ort_state

ORT_ERRORS = (
    ort_state.EPFail,
    ort_state.Fail,
    ort_state.InvalidArgument,
    ort_state.InvalidGraph,
    ort_state.InvalidProtobuf,
    ort_state.NoSuchFile,
    ort_state.NotImplemented,
    ort_state.RuntimeException,
)
"""What ONNX Runtime raises; they have no base class of their own."""

_MOST_READ, _MOST_SHOWN = 4000, 300
_CODE = re.compile(r"\[ONNXRuntimeError\] : \d+ : \w+ : ")
_PLACE = re.compile(
    r"(?:Exception during initialization: )?"
    r"\S+\.(?:cc|cpp|cu|cuh|h|hpp):\d+ "  # a line of its source
    r"[^()]*\((?:[^()]|\([^()]*\))*\)"  # a function and its parameters
    r"(?: const)?(?: \[with [^\]]*\])? "
)
_NODE = re.compile(
    r"This is an invalid model\. In Node, \(\"(?P<name>[^\"]*)\", (?P<kind>[^,]*),.* , Error "
)
"""A node with the types of all that it reads and returns."""


def reason_of(error: Exception) -> str:
    """Return what an error of ONNX Runtime says, in one line of 300 characters at most."""
    text = " ".join(str(error)[:_MOST_READ].split())
    text = _PLACE.sub("", _CODE.sub("", text))
    text = _NODE.sub(lambda found: f"node {found['name']!r} ({found['kind']}): ", text)
    return text[:_MOST_SHOWN].rstrip(" .;") or type(error).__name__
