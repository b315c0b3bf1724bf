"""Faults of the GPU path, each a change of one line, and the test that has to find it.

They are unlike those of ``test_device_pipeline.py``, ``test_triton_faults.py`` and
``test_cuda_faults.py``, which plant theirs in place.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import paged_backends

SOURCES = Path(paged_backends.__file__).parent


@dataclass(frozen=True, slots=True)
class Planted:
    """A fault: ``right``, which ``file`` has once, becomes ``wrong``."""

    file: str
    right: str
    wrong: str
    test: str
    """The test that finds it, as pytest names it; in ``tests``."""


_PIPELINE = "integration/test_device_pipeline.py::test_text_equals_that_of_a_cpu"
_STEPS = "integration/test_device_steps.py"
_SWAPS = "unit/test_device_swaps.py::test_blocks_come_back_as_they_went"
_COPIES = (
    "conformance/test_cuda_kernels.py::TestCudaKernels::test_blocks_are_copied_in_all_caches[by 8]"
)
_TRITON = "unit/test_triton_accesses.py"
_ROWS = "unit/test_batch_maker.py::test_slots_beyond_32_bits"

_CODE = "unit/test_compiled_kernels.py::test_what_no_emulation_sees_is_in_the_code"
_DEVICE = "kernels/cuda/device"

PLANTED = {
    # ------------------------------------------------------------------ graphs
    "block tables are sent once": Planted(
        "executors/decode_graphs.py",
        "if batch.tables_SW is not self._on_device:",
        "if self._on_device is None:",
        f"{_PIPELINE}[small chunks-late]",
    ),
    "block tables change under a step in flight": Planted(
        "executors/batch.py",
        "self.tables_SW = self.tables_SW.copy()",
        "pass",
        f"{_PIPELINE}[small chunks-late]",
    ),
    "rows to spare write to the first slot": Planted(
        "executors/decode_graphs.py",
        "_NO_SLOT = -1",
        "_NO_SLOT = 0",
        f"{_STEPS}::test_rows_to_spare_write_nowhere",
    ),
    "a plan is refreshed before its numbers are copied": Planted(
        "executors/decode_graphs.py",
        "            staged.copy()\n"
        "            self._backend.update_capture(captured.plan, staged.attention)\n",
        "            self._backend.update_capture(captured.plan, staged.attention)\n"
        "            staged.copy()\n",
        f"{_PIPELINE}[defaults-late]",
    ),
    "the token of the first row is not waited for": Planted(
        "executors/device_sampler.py",
        "torch.where(sources_B < 0, ",
        "torch.where(sources_B <= 0, ",
        f"{_PIPELINE}[defaults-late]",
    ),
    # ------------------------------------------------------------------ pinned memory, events
    "pinned memory is given back when a step is launched": Planted(
        "executors/device_steps.py",
        "            graphed = graphs.prepare(batch)\n",
        "            graphed = graphs.prepare(batch)\n            graphed.give_back()\n",
        f"{_PIPELINE}[defaults-late]",
    ),
    "an event is recorded before what samples is launched": Planted(
        "executors/device_steps.py",
        "        # what follows is prepared while the model runs\n",
        "        done = compute.record()\n        compute.record = lambda: done\n",
        f"{_PIPELINE}[defaults-late]",
    ),
    "a step that needs the host does not wait": Planted(
        "executors/device_steps.py",
        "            self._settle()\n            return",
        "            return",
        f"{_STEPS}::test_a_step_that_needs_the_host_waits_for_those_before_it",
    ),
    # ------------------------------------------------------------------ rows of a step
    "logits of the tokens that come first": Planted(
        "executors/device_steps.py",
        "last_R = upload(batch.last_S[places_R])",
        "last_R = upload(places_R)",
        f"{_PIPELINE}[small chunks-late]",
    ),
    "tokens go to the rows of other sequences": Planted(
        "executors/device_steps.py",
        "upload(batch.rows_S[places_R])\n            run",
        "upload(places_R)\n            run",
        f"{_PIPELINE}[eager-late]",
    ),
    "a number is drawn for the token before": Planted(
        "executors/device_sampler.py",
        "int(self._rows.num_tokens_C[batch.rows_S[place]])",
        "int(self._rows.num_tokens_C[batch.rows_S[place]]) - 1",
        f"{_PIPELINE}[defaults-late]",
    ),
    "a sequence fails by logits that are not wanted": Planted(
        "executors/device_sampler.py",
        "if seq_id not in incomplete}",
        "}",
        f"{_STEPS}::test_logits_that_are_not_wanted_fail_nothing",
    ),
    "a token is learnt by the next owner of a row": Planted(
        "executors/batch.py",
        "held_R = self.generation_C[rows_R] == batch.generations_S[places_R]",
        "held_R = rows_R >= 0",
        f"{_STEPS}::test_results_of_sequences_that_are_gone_change_nothing",
    ),
    "a row is taken over with its unknown tokens": Planted(
        "executors/batch.py",
        "        self.num_unknown_C[row] = 0\n",
        "",
        f"{_STEPS}::test_results_of_sequences_that_are_gone_change_nothing",
    ),
    "slots are 32-bit numbers": Planted(
        "executors/batch.py",
        "tables_SW[owner_T, blocks_T] * np.int64(size)",
        "tables_SW[owner_T, blocks_T] * np.int32(size)",
        f"{_ROWS}[5]",
    ),
    "slots of decoding are 32-bit numbers": Planted(
        "executors/batch.py",
        "decode.tables_SW[decode.owner_S, blocks_S] * np.int64(size)",
        "decode.tables_SW[decode.owner_S, blocks_S] * np.int32(size)",
        f"{_ROWS}[1]",
    ),
    # ------------------------------------------------------------------ swaps, copies
    "the second piece of a swap goes where the first went": Planted(
        "executors/paged_cache.py",
        "partial(_to_host, gathered, self._host, targets[piece])",
        "partial(_to_host, gathered, self._host, targets)",
        f"{_SWAPS}[3-late]",
    ),
    "host blocks with a gap are one run": Planted(
        "executors/paged_cache.py",
        "ids[place] != ids[place - 1] + 1",
        "ids[place] <= ids[place - 1]",
        f"{_SWAPS}[64-late]",
    ),
    "blocks that arrive are waited for too early": Planted(
        "executors/paged_cache.py",
        "            transfers.launch(partial(_from_host, self._host, "
        "sources[piece], arrived))\n"
        "            compute.follow(transfers.record())\n",
        "            compute.follow(transfers.record())\n"
        "            transfers.launch(partial(_from_host, self._host, "
        "sources[piece], arrived))\n",
        f"{_SWAPS}[3-late]",
    ),
    "blocks are gathered by the stream of transfers": Planted(
        "executors/paged_cache.py",
        "compute.launch(partial(_gather, ",
        "transfers.launch(partial(_gather, ",
        f"{_SWAPS}[3-late]",
    ),
    # ------------------------------------------------------------------ Triton
    "padded rows store their states": Planted(
        "kernels/triton/attention.py",
        "tl.store(states + index_R, base_R, row_R < GROUP)",
        "tl.store(states + index_R, base_R)",
        f"{_TRITON}::test_attention_in_any_order[splits]",
    ),
    "block ids are read beyond the table": Planted(
        "kernels/triton/attention.py",
        "tl.load(table + position_N // BLOCK_SIZE, position_N < end, 0)",
        "tl.load(table + position_N // BLOCK_SIZE)",
        f"{_TRITON}::test_attention_in_any_order[decode]",
    ),
    "places in the cache are 32-bit numbers": Planted(
        "kernels/triton/attention.py",
        "return ids.to(tl.int64)",
        "return ids",
        "unit/test_triton_attention.py::test_places_beyond_two_billion_numbers[chunk0]",
    ),
    "a row that sees nothing of a tile": Planted(
        "kernels/triton/attention.py",
        'tl.where(top_R == float("-inf"), 0.0, top_R)',
        "top_R",
        f"{_TRITON}::test_a_query_that_sees_nothing_of_a_tile",
    ),
    "splits that no program made are merged": Planted(
        "kernels/triton/attention.py",
        "used = (count + tiles - 1) // tiles",
        "used = num_splits",
        f"{_TRITON}::test_a_sequence_of_few_splits_beside_one_of_many",
    ),
    "the first tile of a window": Planted(
        "kernels/triton/attention.py",
        "first = tl.maximum(length - window, 0) // KEYS",
        "first = (tl.maximum(length - window, 0) + KEYS - 1) // KEYS",
        f"{_TRITON}::test_attention_in_any_order[window]",
    ),
    "slots are read beyond the batch": Planted(
        "kernels/triton/cache.py",
        "tl.load(slots + token_N, token_N < num_tokens, -1)\n"
        "    is_written_N = slot_N >= 0\n    dims_D",
        "tl.load(slots + token_N)\n    is_written_N = slot_N >= 0\n    dims_D",
        f"{_TRITON}::test_attention_in_any_order[decode]",
    ),
    "a row to spare is written before the cache": Planted(
        "kernels/triton/cache.py",
        "is_written_N = slot_N >= 0\n    dims_D",
        "is_written_N = slot_N >= -1\n    dims_D",
        "unit/test_triton_attention.py::test_a_captured_plan_follows_the_numbers_of_i"
        "ts_tensors[False]",
    ),
    "the logits of the next row": Planted(
        "kernels/triton/sampling.py",
        'keys = keys_of(tl.load(places, ids < vocab_size, float("-inf")).to(tl.float32))',
        "keys = keys_of(tl.load(places).to(tl.float32))",
        "unit/test_device_sampling.py::test_draws_as_the_host_does[triton_sample]",
    ),
    # ------------------------------------------------------------------ CUDA, from Python
    "a split too few": Planted(
        "kernels/cuda/kernel.py",
        "return cls(keys, most, max(1, min(most, -(-longest // keys))))",
        "return cls(keys, most, max(1, min(most, longest // keys)))",
        "unit/test_cuda_attention.py::test_a_decode_is_split_and_combined",
    ),
    "heads that begin at odd places": Planted(
        "attention/cuda_attention.py",
        "misfit = tensor.data_ptr() | token * self._bytes | head * self._bytes",
        "misfit = tensor.data_ptr() | token * self._bytes",
        "unit/test_cuda_attention.py::test_rows_that_do_not_begin_at_16_bytes_are_copied",
    ),
    "blocks that are copied in a circle": Planted(
        "kernels/cuda/kernel.py",
        "if set(origins).isdisjoint(destinations):",
        "if origins:",
        _COPIES,
    ),
    "the last bytes of a block": Planted(
        "kernels/cuda/kernel.py",
        "sizes = [one[0].numel() * one.element_size() for one in sources]",
        "sizes = [one[0].numel() * one.element_size() // 16 * 16 for one in sources]",
        _COPIES,
    ),
    # ------------------------------------------------------------------ what only a GPU runs
    "a copy reads what is not there": Planted(
        f"{_DEVICE}/async_copy.h",
        "int bytes = is_there ? kBytes : 0;",
        "int bytes = kBytes;",
        f"{_CODE}[decode]",
    ),
    "a wait for copies leaves one group more": Planted(
        f"{_DEVICE}/async_copy.h",
        '"cp.async.wait_group %0;" ::"n"(kGroups)',
        '"cp.async.wait_group %0;" ::"n"(kGroups + 1)',
        f"{_CODE}[tiles]",
    ),
    "matrices are not transposed": Planted(
        f"{_DEVICE}/tensor_core.h", "m8n8.x4.trans.shared", "m8n8.x4.shared", f"{_CODE}[decode]"
    ),
    "B of a warpgroup is not transposed": Planted(
        f"{_DEVICE}/warpgroup.h",
        '"}, {%64,%65,%66,%67}, b, p, 1, 1, 1; }"',
        '"}, {%64,%65,%66,%67}, b, p, 1, 1, 0; }"',
        f"{_CODE}[warpgroups]",
    ),
    "products are not shown what was copied": Planted(
        f"{_DEVICE}/warpgroup.h", '"fence.proxy.async.shared::cta;"', '""', f"{_CODE}[warpgroups]"
    ),
    "products are not waited for": Planted(
        f"{_DEVICE}/warpgroup.h",
        '"wgmma.wait_group.sync.aligned %0;" ::"n"(kGroups)',
        '"wgmma.wait_group.sync.aligned %0;" ::"n"(kGroups + 1)',
        f"{_CODE}[warpgroups]",
    ),
    "fewer thread blocks fit a multiprocessor": Planted(
        f"{_DEVICE}/simt.h",
        "__launch_bounds__(threads, min_blocks)",
        "__launch_bounds__(threads)",
        f"{_CODE}[warpgroups]",
    ),
    "kernels are launched in the default stream": Planted(
        "kernels/cuda/driver.py",
        "return int(_cuda_getCurrentRawStream(self._context.device))",
        "return 0 * int(_cuda_getCurrentRawStream(self._context.device))",
        "unit/test_cuda_build.py::test_kernels_run_in_the_current_stream_of_their_device",
    ),
    "a captured step keeps the splits of the longest sequence": Planted(
        "attention/cuda_attention.py",
        "            launches.split.fill_(keys)\n",
        "            pass\n",
        "unit/test_cuda_attention.py"
        "::test_a_captured_step_divides_the_keys_of_the_sequences_at_hand[8-4096-512]",
    ),
}
