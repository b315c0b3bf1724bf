"""A recording of a scheduler: what it was asked and what it decided, a line of JSON at a time.

``paged-core decisions import`` makes a scenario and a trace of it. Prompts are keys of the content
of their blocks, under a salt that only this process knows: equal content has equal keys within one
recording, and nothing can be looked up in them.
"""

from __future__ import annotations

import json
import logging
import secrets
from collections import OrderedDict, deque
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any, TextIO

from paged_core.errors import SettingsError

from paged_core_vllm.settings import RecordSettings
from paged_core_vllm.views import extra_of

VERSION = 1
"""Version of the recording."""
_MOST_ENDED = 2**15
"""Requests that have ended whose continuation would be recognised."""
_log = logging.getLogger("vllm.paged_core")


class Lines:
    """A file of lines that are flushed one by one; a full one is kept as ``PATH.1`` and so on.

    A file that can no longer be written is given up, and the log says so: the service goes on.
    """

    def __init__(self, options: RecordSettings, path: Path) -> None:
        self._options, self.path = options, path
        self.part = 0
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            if path.exists():
                self._keep()
            self._file: TextIO | None = path.open("w", 1, encoding="utf-8")
        except OSError as error:
            reason = error.strerror or error
            raise SettingsError(f"record: {path} cannot be written: {reason}") from None
        self._size = 0

    def write(self, line: dict[str, Any]) -> None:
        if self._file is not None:
            text = json.dumps(line, separators=(",", ":")) + "\n"
            self._size += len(text)
            try:
                self._file.write(text)
            except OSError as error:
                self._give_up(error)

    @property
    def is_full(self) -> bool:
        return self._size >= self._options.max_bytes

    def begin(self) -> None:
        """Keep the file and begin the next one."""
        if self._file is None:
            return
        try:
            self._file.close()
            self._keep()
            self._file = self.path.open("w", 1, encoding="utf-8")
        except OSError as error:
            self._give_up(error)
        self._size, self.part = 0, self.part + 1

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def _keep(self) -> None:
        """Rename the files that there are, the oldest one away."""
        for number in range(self._options.files - 1, 0, -1):
            newer = self.path if number == 1 else numbered(self.path, number - 1)
            if newer.exists():
                newer.replace(numbered(self.path, number))

    def _give_up(self, error: OSError) -> None:
        self._file = None
        _log.error("recording %s has ended: %s", self.path, error.strerror or error)


def numbered(path: Path, number: int) -> Path:
    """Return the path of a file that was kept; 1 is the newest."""
    return path.with_name(f"{path.name}.{number}")


class Recorder:
    """Writes what a scheduler of vLLM is asked and decides.

    Args:
        scheduler: vLLM's, when its own start has ended.
        chosen: the components that decide, with their options, by slot.
    """

    def __init__(self, options: RecordSettings, scheduler: Any, chosen: dict[str, Any]) -> None:
        rank = getattr(scheduler.parallel_config, "data_parallel_index", 0)
        path = options.path
        path = path.with_name(f"{path.stem}.{rank}{path.suffix}") if rank else path
        self._lines, self._options = Lines(options, path), options
        self._salt = secrets.token_bytes(16)
        self._size = getattr(scheduler, "hash_block_size", scheduler.block_size)
        self._start: float | None = None
        self.step = 0
        """The next step."""
        self._planned: deque[dict[str, Any] | None] = deque()
        self._preempted: list[str] = []
        self._finished: list[str] = []
        self._ended: OrderedDict[bytes, tuple[str, int, list[int]]] = OrderedDict()
        """By the hash of its last full block: id, length and last tokens of a request."""
        self._header = {
            "recording": VERSION,
            "settings": _settings(scheduler, chosen),
            "block_tokens": self._size,
            "async": bool(scheduler.scheduler_config.async_scheduling),
        }
        self._lines.write(self._header | {"part": 0})

    # ------------------------------------------------------------------ requests

    def added(self, request: Any) -> None:
        """Note a request that arrives."""
        if self._start is None:
            self._start = request.arrival_time
        hashes: Sequence[bytes] = request.block_hashes
        length, ids = request.num_prompt_tokens, request.prompt_token_ids or []
        line = {
            "add": request.request_id,
            "step": self.step,
            "at": self._since(request.arrival_time),
            "length": length,
            "output": request.max_tokens,
        }
        full = length // self._size
        follows = self._continued(hashes[:full], ids) if hashes else None
        if follows is not None:
            name, end = follows
            rest = blake2b(repr(ids[end:]).encode(), key=self._salt, digest_size=8).hexdigest()
            line |= {"follows": name, "from": end, "rest": rest}
        else:
            line["blocks"] = self._keys(hashes[:full])
        if request.priority:
            line["priority"] = request.priority
        extra = extra_of(request)
        if "tenant" in extra:
            line["tenant"] = extra["tenant"]
        if "deadline" in extra:
            line["deadline"] = self._since(extra["deadline"])
        if self._options.tokens:
            line["tokens"] = list(ids)
        self._lines.write(line)

    def _continued(self, hashes: Sequence[bytes], ids: Sequence[int]) -> tuple[str, int] | None:
        """Return the request whose prompt and answer this prompt begins with, and their length."""
        for hash_ in reversed(hashes) if self._ended else ():
            found = self._ended.get(hash_)
            if found is not None:
                name, end, tail = found
                if end < len(ids) and list(ids[end - len(tail) : end]) == tail:
                    return name, end
        return None

    def ended(self, request: Any, *, is_aborted: bool, now: float) -> None:
        """Note a request that has ended."""
        end, full = request.num_tokens, request.num_tokens // self._size
        if not is_aborted:
            self._finished.append(request.request_id)
            if 0 < full <= len(request.block_hashes):
                tail = list(request.all_token_ids[full * self._size : end])
                self._ended[request.block_hashes[full - 1]] = (request.request_id, end, tail)
                if len(self._ended) > _MOST_ENDED:
                    self._ended.popitem(last=False)
        line = {
            "end": request.request_id,
            "step": self.step,
            "at": self._since(now),
            "output": request.num_output_tokens,
        }
        if is_aborted:
            is_planned = bool(self._planned)
            line |= {"aborted": True, "step": self.step - is_planned, "planned": is_planned}
        if self._options.tokens:
            line["tokens"] = list(request.output_token_ids)
        self._lines.write(line)

    def _keys(self, hashes: Iterable[bytes]) -> list[str]:
        key = self._salt
        return [blake2b(bytes(h), key=key, digest_size=8).hexdigest() for h in hashes]

    def _since(self, time: float) -> float:
        return round(time - (self._start or 0.0), 6)

    # ------------------------------------------------------------------ steps

    def preempted(self, request: Any) -> None:
        self._preempted.append(request.request_id)

    def planned(self, output: Any, now: float, *, is_step: bool) -> None:
        """Note what a step is to compute; it is written when its result is there.

        Args:
            is_step: requests were there to be planned.
        """
        scheduled: dict[str, int] = dict(output.num_scheduled_tokens)
        cached = {each.req_id: each.num_computed_tokens for each in output.scheduled_new_reqs}
        again = output.scheduled_cached_reqs
        for name, count in zip(again.req_ids, again.num_computed_tokens, strict=True):
            if name in again.resumed_req_ids:
                cached[name] = count
        line = {
            "step": self.step,
            "scheduled": scheduled,
            "cached": {name: cached[name] for name in scheduled if name in cached},
            "preempted": self._preempted,
            "time": self._since(now) if self._start is not None else 0.0,
        }
        self._preempted = []
        self._planned.append(line if is_step else None)
        self.step += is_step

    def applied(self, scheduler: Any) -> None:
        """Write the oldest step that was planned: its result was applied."""
        line = self._planned.popleft() if self._planned else None
        if line is not None:
            pool = scheduler.kv_cache_manager.block_pool
            line |= {
                "swapped_out": [],
                "swapped_in": [],
                "ignored": [],
                "finished": self._finished,
                "running": [request.request_id for request in scheduler.running],
                "waiting": [request.request_id for request in scheduler.waiting],
                "swapped": [],
                "free_blocks": pool.get_num_free_blocks(),
            }
            self._lines.write({"trace": line})
        self._finished = []
        if self._lines.is_full:
            self._lines.begin()
            self._lines.write(self._header | {"part": self._lines.part})

    def close(self) -> None:
        self._lines.close()


def _settings(scheduler: Any, chosen: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of the scenario that this scheduler serves."""
    config = scheduler.scheduler_config
    is_caching = scheduler.cache_config.enable_prefix_caching
    return {
        "block_size": scheduler.block_size,
        "num_blocks": scheduler.kv_cache_manager.block_pool.num_gpu_blocks - 1,
        "max_model_len": scheduler.max_model_len,
        "block_allocator": "hash_cached" if is_caching else "uncached",
        "watermark": getattr(config, "watermark", 0.0),
        "preemption": "recompute",
        **chosen,
        "scheduler": {
            "name": "token_budget",
            "max_num_seqs": scheduler.max_num_running_reqs,
            "max_num_batched_tokens": scheduler.max_num_scheduled_tokens,
            "chunked_prefill": config.enable_chunked_prefill,
            "long_prefill_token_threshold": config.long_prefill_token_threshold,
            "reserve_full_sequence": getattr(scheduler, "scheduler_reserve_full_isl", False),
        },
    }


class Recorded:
    """Goes before a scheduler of vLLM, and tells its :attr:`recorder`, if it has one."""

    recorder: Recorder | None = None
    _is_applying = False

    def add_request(self, request: Any) -> None:
        scheduler: Any = self
        if self.recorder is not None and request.request_id not in scheduler.requests:
            self.recorder.added(request)
        super().add_request(request)  # type: ignore[misc]

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        scheduler: Any = self
        is_step = bool(scheduler.running or scheduler.waiting)
        output = super().schedule(*args, **kwargs)  # type: ignore[misc]
        if self.recorder is not None:
            self.recorder.planned(output, scheduler.clock(), is_step=is_step)
        return output

    def update_from_output(self, *args: Any, **kwargs: Any) -> Any:
        self._is_applying = True
        try:
            result = super().update_from_output(*args, **kwargs)  # type: ignore[misc]
        finally:
            self._is_applying = False
        if self.recorder is not None:
            self.recorder.applied(self)
        return result

    def _preempt_request(self, request: Any, *args: Any, **kwargs: Any) -> None:
        if self.recorder is not None:
            self.recorder.preempted(request)
        super()._preempt_request(request, *args, **kwargs)  # type: ignore[misc]

    def _free_request(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        if self.recorder is not None:
            scheduler: Any = self
            now = scheduler.clock()
            self.recorder.ended(request, is_aborted=not self._is_applying, now=now)
        return super()._free_request(request, *args, **kwargs)  # type: ignore[misc]

    def shutdown(self) -> None:
        if self.recorder is not None:
            self.recorder.close()
        super().shutdown()  # type: ignore[misc]
