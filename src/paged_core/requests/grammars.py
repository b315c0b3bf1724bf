"""Forms of outputs, compiled before their requests are added."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import Future

from paged_core.errors import EngineError, RequestError
from paged_core.interfaces.executor import Executor, SupportsGrammar
from paged_core.sampling_params import SamplingParams


def compile_grammar(executor: Executor, sampling: SamplingParams) -> Future[None] | None:
    """Begin to compile the form of a request that is to be added; any thread may call it.

    Returns:
        A future, see :func:`refusal`; ``None``: there is nothing to wait for. An executor without
        grammars refuses the request when it is added.
    """
    form = sampling.structured_outputs
    if form is None or not isinstance(executor, SupportsGrammar):
        return None
    try:
        return executor.compile_grammar(form)
    except EngineError:  # it was lost: a step starts it again, and compiles the form
        return None


def refusal(compiled: Future[None]) -> RequestError | None:
    """Wait until a form is compiled; return why it cannot be.

    If the executor is lost meanwhile, a step starts it again, and compiles the form.
    """
    error = compiled.exception()
    if error is None or isinstance(error, EngineError | RequestError):
        return error if isinstance(error, RequestError) else None
    raise error


def compile_grammars(executor: Executor, samplings: Iterable[SamplingParams]) -> None:
    """Compile the forms of some requests at once, and wait for all.

    Raises:
        RequestError: one cannot be compiled.
    """
    distinct = {each.structured_outputs: each for each in samplings}
    for future in [compile_grammar(executor, each) for each in distinct.values()]:
        if future is not None and (error := refusal(future)) is not None:
            raise error
