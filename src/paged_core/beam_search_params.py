"""The parameters of :meth:`paged_core.LLM.beam_search`."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Literal

from paged_core.sampling_params import SamplingParams


@dataclass(frozen=True, slots=True, kw_only=True)
class BeamSearchParams:
    """A beam search that returns as many sequences as it has beams; the names are vLLM's."""

    beam_width: int
    max_tokens: int
    ignore_eos: bool = False
    length_penalty: float = 1.0
    early_stopping: bool | Literal["never"] = False

    def sampling(self) -> SamplingParams:
        """Return the same as sampling parameters.

        Raises:
            RequestError: a value is out of range.
        """
        return SamplingParams(**asdict(self)).clone(n=self.beam_width)
