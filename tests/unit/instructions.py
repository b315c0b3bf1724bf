"""The instructions in the inner loops of compiled GPU kernels, counted without a GPU.

What is counted is one turn of a loop as a warp issues it: of the ways through the loop without a
soft cap's reciprocals, those that have the most matrix products, copies and powers, and of these
the shortest. Inner loops count once. The disassembler is Triton's, or that of a CUDA toolkit.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from paged_backends.kernels.build import CannotCompile

AVOIDING = r"MUFU\.RCP"
"""Instructions of a turn only with a soft cap."""


_SECTION = re.compile(r"\.section\s+\.text\.(\w+)")
_LABEL = re.compile(r"(\.L_\w+):")
_INSTRUCTION = re.compile(r"/\*[0-9a-f]+\*/\s+(?:(@!?U?P\w+)\s+)?([A-Z]\S*)\s*(.*?)\s*;")
_BRANCH = re.compile(r"`\((\.L_\w+)\)")
_ENDS = ("EXIT", "RET")


@dataclass(frozen=True, slots=True)
class Instruction:
    """One line of the assembly."""

    predicate: str
    """Empty: it is always executed."""
    opcode: str
    """With its modifiers: ``HMMA.16816.F32.BF16``."""
    operands: str
    target: str | None
    """Label that it may branch to."""

    @property
    def is_certain(self) -> bool:
        """Return whether the instruction computes one value for all lanes."""
        return not self.predicate and not self.opcode.startswith("BRA.DIV")


@dataclass(frozen=True, slots=True)
class Kernel:
    """The assembly of a kernel."""

    name: str
    instructions: tuple[Instruction, ...]
    labels: dict[str, int]
    """Index of the instruction that follows each."""

    def loop(self, holding: str, avoiding: str = AVOIDING) -> tuple[Instruction, ...]:
        """Return a turn of the smallest loop that has the most of ``holding``.

        Args:
            holding: opcodes, as a regular expression.
            avoiding: those of rare ways through the loop.

        Raises:
            LookupError: no loop has any.
        """
        held = [bool(re.match(holding, one.opcode)) for one in self.instructions]
        found = [(sum(held[first:last]), first - last, first) for first, last in self._loops()]
        if not found or not max(found)[0]:
            raise LookupError(f"kernel {self.name} has no loop with {holding}")
        _, length, first = max(found)
        avoided = [bool(re.match(avoiding, one.opcode)) for one in self.instructions]
        gains = [(-bad, good, -1) for bad, good in zip(avoided, held, strict=True)]
        return tuple(self._best(first, first - length, gains))

    def _loops(self) -> Iterator[tuple[int, int]]:
        """First instruction and end of each loop; what is rare lies behind the kernel's end."""
        for index, one in enumerate(self.instructions):
            first = self.labels.get(one.target or "", index + 1)
            body = self.instructions[first : index + 1]
            ends = any(each.opcode in _ENDS and each.is_certain for each in body)
            if one.opcode.startswith("BRA") and first <= index and not ends:
                yield first, index + 1

    def _best(
        self, first: int, end: int, gains: Sequence[tuple[int, int, int]]
    ) -> Iterator[Instruction]:
        """The instructions of the way whose gains are the greatest."""
        best = {end: ((0, 0, 0), end)}  # the gains from an instruction on, and the next one
        for index in reversed(range(first, end)):
            one = self.instructions[index]
            branches = one.opcode.startswith("BRA")
            ways = [] if branches and one.is_certain and index + 1 < end else [index + 1]
            to = self.labels.get(one.target or "", first)
            if branches and index < to < end:
                ways.append(to)
            known = [(best[way][0], way) for way in ways if way in best]
            if known:
                (bad, good, length), way = max(known)
                more = gains[index]
                best[index] = ((bad + more[0], good + more[1], length + more[2]), way)
        index = first
        while index < end:
            yield self.instructions[index]
            index = best[index][1]


def disassembler() -> Path:
    """Return the path of nvdisasm.

    Raises:
        CannotCompile: there is none.
    """
    found = find_spec("triton")
    for place in (found and found.submodule_search_locations) or ():
        path = Path(place, "backends", "nvidia", "bin", "nvdisasm")
        if path.is_file():
            return path
    path = shutil.which("nvdisasm")
    if path is None:
        raise CannotCompile("there is no nvdisasm; `pip install triton` brings it")
    return Path(path)


def disassemble(code: Path) -> dict[str, Kernel]:
    """Return the kernels of a cubin by name.

    Raises:
        CannotCompile: there is no disassembler, or it fails.
    """
    command = [str(disassembler()), "-c", str(code)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise CannotCompile(f"{command[0]} failed: {done.stderr.strip()[:500]}")
    return {kernel.name: kernel for kernel in parse(done.stdout)}


def parse(assembly: str) -> Iterator[Kernel]:
    """The kernels in what nvdisasm prints."""
    _, *sections = _SECTION.split(assembly)
    for name, text in zip(sections[::2], sections[1::2], strict=True):
        instructions: list[Instruction] = []
        labels: dict[str, int] = {}
        for line in text.splitlines():
            if label := _LABEL.match(line):
                labels[label[1]] = len(instructions)
            elif one := _INSTRUCTION.search(line):
                target = _BRANCH.search(one[3])
                instructions.append(Instruction(one[1] or "", one[2], one[3], target and target[1]))
        yield Kernel(name, tuple(instructions), labels)
