"""Compiles grammars beside the steps, under a limit of time, and keeps them by their content."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from ctypes import CDLL, Structure, c_size_t
from dataclasses import dataclass, field, replace
from threading import BoundedSemaphore, Lock, Thread, Timer, stack_size

import psutil

from paged_core.errors import PagedCoreError, RequestError, error_text
from paged_core.interfaces.grammar import CompiledGrammar, GrammarBackend, Vocabulary
from paged_core.log import get_logger
from paged_core.structured_outputs import StructuredOutputs

_MOST_KEPT = 256
"""Grammars."""
_MOST_BYTES = 512 << 20
"""Memory of all that are kept, about; the last one is kept whatever it takes."""
_BYTES_PER_CHARACTER = 160
"""Memory of a form whose growth other threads hide: long choices take so much."""
_STACK = 1 << 30
"""Bytes of addresses, of which no more is memory than is used."""
_MOST_LATE = 8
"""Grammars that are still being compiled although their time is up: threads cannot be ended."""

_starting = Lock()
_log = get_logger()


@dataclass(slots=True, eq=False)
class _Entry:
    """A grammar that is being compiled, was, or cannot be."""

    done: Future[None] = field(default_factory=Future)
    grammar: CompiledGrammar | None = None
    timer: Timer | None = None
    has_turn: bool = False
    num_bytes: int = 0


class GrammarCompiler:
    """The compiled grammars of an executor.

    Args:
        name: of the component, for errors.
        make: the vocabulary, and the component for it; called once, when the first request asks.
        timeout: seconds that a grammar may take.
    """

    def __init__(
        self, name: str, make: Callable[[], tuple[Vocabulary, GrammarBackend]], timeout: float
    ) -> None:
        self._name = name
        self._make = make
        self._timeout = timeout
        self._made: tuple[Vocabulary, GrammarBackend] | None = None
        self._entries: OrderedDict[StructuredOutputs, _Entry] = OrderedDict()
        self._making, self._lock = Lock(), Lock()
        self._turns = BoundedSemaphore(os.cpu_count() or 1)
        self._num_late = 0

    def made(self) -> tuple[Vocabulary, GrammarBackend]:
        """Return the vocabulary and the component.

        Raises:
            RequestError: there can be none; the message says why.
        """
        with self._making:
            if self._made is None:
                try:
                    self._made = self._make()
                except PagedCoreError as error:
                    raise RequestError(f"structured_outputs cannot be served: {error}") from error
        return self._made

    def compile(self, form: StructuredOutputs) -> Future[None]:
        """Begin to compile a grammar unless it is known; the future raises ``RequestError``."""
        return self._entry(form).done

    def get(self, form: StructuredOutputs) -> CompiledGrammar:
        """Return a compiled grammar; wait for it if need be.

        Raises:
            RequestError: it cannot be compiled.
        """
        entry = self._entry(form)
        entry.done.result()
        assert entry.grammar is not None
        return entry.grammar

    def _entry(self, form: StructuredOutputs) -> _Entry:
        key = replace(form, after=None)
        with self._lock:
            known = self._entries.get(key)
            if known is not None:
                self._entries.move_to_end(key)
                return known
            entry = self._entries[key] = _Entry()
            entry.done.set_running_or_notify_cancel()  # others wait for it, too: none may cancel it
            self._let_go()
            if self._num_late >= _MOST_LATE:
                problem = f"{_MOST_LATE} others are still being compiled past their time"
                self._end(key, entry, RequestError(f"{_CANNOT} now: {problem}; try again later"))
                return entry
            entry.timer = Timer(self._timeout, self._give_up, (key, entry))
            entry.timer.daemon = True
            entry.timer.start()
        Thread(target=self._compile, args=(key, entry), daemon=True).start()
        return entry

    def _let_go(self) -> None:
        """Forget the forms that were asked for longest ago, beyond what is kept."""
        num_bytes = sum(each.num_bytes for each in self._entries.values())
        while len(self._entries) > _MOST_KEPT or (
            num_bytes > _MOST_BYTES and len(self._entries) > 1
        ):
            num_bytes -= self._entries.popitem(last=False)[1].num_bytes

    def _compile(self, key: StructuredOutputs, entry: _Entry) -> None:
        self._turns.acquire()
        with self._lock:
            if entry.done.done():  # it waited for its turn until its time was up
                self._turns.release()
                return
            entry.has_turn = True
        error: RequestError | None = None
        before = _memory()

        def compile_form() -> None:
            nonlocal error
            try:
                entry.grammar = self.made()[1].compile(key)
            except RequestError as refusal:
                error = refusal
            except BaseException as fault:  # noqa: BLE001 - Rust's panics are no Exception
                error = RequestError(f"grammar {self._name!r} raised {error_text(fault)}")
                _log.warning("grammar_failed", grammar=self._name, reason=str(error))

        try:
            _on_deep_stack(compile_form)
        except (RuntimeError, ValueError) as fault:  # no such thread can be started
            error = RequestError(f"{_CANNOT} now: {fault}; try again later")
        with self._lock:
            if entry.done.done():
                self._num_late -= 1
                return
            self._turns.release()
            grown = (now - then for now, then in zip(_memory(), before, strict=True))
            entry.num_bytes = max(*grown, _BYTES_PER_CHARACTER * len(repr(key)))
            self._let_go()
            self._end(key, entry, error, keep=True)

    def _give_up(self, key: StructuredOutputs, entry: _Entry) -> None:
        """End the turn of a grammar whose time is up."""
        problem = f"it takes longer than executor.grammar_timeout={self._timeout:g} s"
        with self._lock:
            if entry.done.done():
                return
            if entry.has_turn:
                self._num_late += 1
                self._turns.release()
            self._end(key, entry, RequestError(f"{_CANNOT}: {problem}; simplify it"))

    def _end(
        self,
        key: StructuredOutputs,
        entry: _Entry,
        error: RequestError | None,
        *,
        keep: bool = False,
    ) -> None:
        """Report the end of a grammar; one that may be compiled another time is not kept."""
        if entry.timer is not None:
            entry.timer.cancel()
        if not keep and self._entries.get(key) is entry:
            del self._entries[key]
        if error is None:
            entry.done.set_result(None)
        else:
            entry.done.set_exception(error)


class _Mallinfo(Structure):
    """Figures of the C library about what it has allocated (``mallinfo2``)."""

    _fields_ = (
        *((name, c_size_t) for name in ("arena", "ordblks", "smblks", "hblks", "hblkhd")),
        *((name, c_size_t) for name in ("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost")),
    )


def _memory() -> tuple[int, int]:
    """Return the bytes that the process holds, and those that it has allocated and not freed.

    A form that is compiled into freed memory shows in the second, where the C library counts it
    (glibc from 2.33 on); elsewhere that is 0.
    """
    held, library = psutil.Process().memory_info().rss, CDLL(None)
    if not hasattr(library, "mallinfo2"):
        return held, 0
    library.mallinfo2.restype = _Mallinfo
    found = library.mallinfo2()
    return held, found.uordblks + found.hblkhd


def _on_deep_stack(call: Callable[[], None]) -> None:
    """Call something in a thread whose stack holds whatever nests in a form of the greatest length.

    Compilers descend a form rule by rule, and one that finds no stack ends the process.
    """
    with _starting:
        usual = stack_size(_STACK)
        try:
            thread = Thread(target=call, daemon=True)
            thread.start()
        finally:
            stack_size(usual)
    thread.join()


_CANNOT = "structured_outputs cannot be compiled"
