"""A process that has run steps may fork: the child serves too, or says at once why it cannot."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytestmark = [
    pytest.mark.heavy,
    pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here"),
]

SETUP = """
import multiprocessing, os, sys, threading
from paged_core.errors import EngineError
from paged_core.llm import LLM
from paged_core.sampling_params import SamplingParams

SETTINGS = dict(threads=2, num_blocks=64)
PROMPTS = ["a block table is a table of blocks " * 4, "a queue is " * 8]

def text(llm):
    outputs = llm.generate(PROMPTS, SamplingParams(max_tokens=6))
    return [output.outputs[0].text for output in outputs]

def shared(_):
    return text(llm)

def made_anew(_):
    with LLM(**SETTINGS) as other:
        return text(other)

def in_child(function):
    child = os.fork()
    if not child:
        status = 1
        try:
            function()
            status = 0
        finally:
            os._exit(status)
    return os.waitpid(child, 0)[1]

llm = LLM(**SETTINGS)
expected = text(llm)
"""
POOL = """
with multiprocessing.get_context("fork").Pool(2) as pool:
    assert pool.map(shared, range(4)) == [expected] * 4
    assert pool.map(made_anew, range(1)) == [expected]
assert text(llm) == expected
"""
BETWEEN_STEPS = """
steps = llm.stream(PROMPTS[0], SamplingParams(max_tokens=6))
for _ in range(3):
    next(steps)
def child():
    *_, last = steps
    assert last.outputs[0].text == expected[0]
assert in_child(child) == 0
child()
"""
DURING_A_STEP = """
entered, go_on = threading.Event(), threading.Event()

def wait(_tokens, logits):
    entered.set()
    go_on.wait()
    return logits

def serve():
    llm.generate(PROMPTS[0], SamplingParams(max_tokens=2, logits_processors=(wait,)))

def refused(function):
    try:
        function()
    except EngineError as error:
        assert "forked while a thread was using this engine" in str(error), error
        assert "'spawn'" in str(error), error
    else:
        raise AssertionError("it was not refused")

def child():
    refused(lambda: llm.generate(PROMPTS[0]))
    refused(lambda: llm.driver.abort("1"))
    assert made_anew(0) == expected

thread = threading.Thread(target=serve)
thread.start()
entered.wait()
assert in_child(child) == 0
go_on.set()
thread.join()
assert text(llm) == expected
"""


def test_a_forked_process_serves_or_says_why_not() -> None:
    program = SETUP + POOL + BETWEEN_STEPS + DURING_A_STEP
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program],
        capture_output=True,
        text=True,
        timeout=180,  # guards against hanging
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
