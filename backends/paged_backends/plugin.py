"""The plugin ``backends``: what computes. Nothing here imports torch or transformers."""

from __future__ import annotations

from collections.abc import Iterator

from paged_backends.attention.settings import (
    CpuSettings,
    CudaSettings,
    FlashAttnSettings,
    FlashInferSettings,
    HybridSettings,
    TorchSettings,
    TritonSettings,
)
from paged_backends.communication.settings import GlooSettings, NcclSettings, ShmSettings
from paged_backends.executors.settings import (
    LocalSettings,
    MemorySettings,
    ProcessSettings,
    TensorParallelSettings,
    WorkersSettings,
)
from paged_backends.grammar.settings import LlguidanceSettings, XgrammarSettings
from paged_backends.kernels.triton.availability import rank as triton_rank
from paged_backends.runners.settings import (
    NativeSettings,
    OnnxRuntimeSettings,
    TransformersSettings,
)
from paged_core.plugins.component import Component
from paged_core.plugins.hooks import hookimpl


@hookimpl
def paged_core_components() -> Iterator[Component]:
    yield Component(
        "attention",
        TorchSettings,
        "paged_backends.attention.torch_attention:TorchAttention",
        summary="plain PyTorch on any device; the reference for the others",
    )
    yield Component(
        "attention",
        CpuSettings,
        "paged_backends.attention.cpu_attention:CpuAttention",
        rank=10,
        check="paged_backends.kernels.cpu.availability:unavailable_reason",
        details="paged_backends.kernels.cpu.availability:details",
        summary="our own kernels for CPUs (AVX-512, AVX2, portable), compiled on first use",
    )
    yield Component(
        "attention",
        TritonSettings,
        "paged_backends.attention.triton_attention:TritonAttention",
        rank=triton_rank(),
        check="paged_backends.kernels.triton.availability:unavailable_reason",
        details="paged_backends.kernels.triton.availability:details",
        summary="our own kernels in Triton, for CUDA devices; compiled on first use",
    )
    yield Component(
        "attention",
        CudaSettings,
        "paged_backends.attention.cuda_attention:CudaAttention",
        rank=20,
        check="paged_backends.kernels.cuda.targets:unavailable_reason",
        details="paged_backends.kernels.cuda.targets:details",
        summary="our own CUDA C++ kernels, compiled on first use",
    )
    yield Component(
        "attention",
        FlashAttnSettings,
        "paged_backends.attention.flash_attention:FlashAttnAttention",
        rank=40,
        check="paged_backends.attention.flash_attention:unavailable_reason",
        details="paged_backends.attention.flash_attention:details",
        summary="flash-attn 3, 2 or 4, or PyTorch's own flash attention, on NVIDIA GPUs",
    )
    yield Component(
        "attention",
        FlashInferSettings,
        "paged_backends.attention.flashinfer_attention:FlashInferAttention",
        rank=30,
        check="paged_backends.attention.flashinfer_attention:unavailable_reason",
        summary="the package FlashInfer, on NVIDIA GPUs",
    )
    yield Component(
        "attention",
        HybridSettings,
        "paged_backends.attention.hybrid_attention:make_hybrid",
        rank=None,
        details="paged_backends.attention.hybrid_attention:details",
        summary="two components over one cache: one for prefill, one for decoding",
    )
    yield Component(
        "runner",
        NativeSettings,
        "paged_backends.runners.native.runner:NativeRunner",
        rank=10,
        details="paged_backends.kernels.cpu.availability:runner_details",
        summary="a decoder of our own: Llama, Mistral, Qwen2, Qwen3, Gemma, OPT and GPT-2",
    )
    yield Component(
        "runner",
        TransformersSettings,
        "paged_backends.runners.transformers.runner:TransformersRunner",
        summary="any decoder-only model of the transformers library",
    )
    yield Component(
        "runner",
        OnnxRuntimeSettings,
        "paged_backends.runners.onnx.runner:OnnxRuntimeRunner",
        rank=-10,
        check="paged_backends.runners.onnx.packages:unavailable_reason",
        details="paged_backends.runners.onnx.packages:details",
        summary="ONNX Runtime between the engine's own attention layers",
    )
    yield Component(
        "executor",
        LocalSettings,
        "paged_backends.executors.local:LocalExecutor",
        summary="runs the model in this process",
    )
    yield Component(
        "executor",
        MemorySettings,
        "paged_backends.executors.memory:MemoryExecutor",
        summary="no model: the cache holds token ids",
    )
    for options, summary in (
        (WorkersSettings, "another executor in processes, each with its share of every layer"),
        (ProcessSettings, "`workers`, of which there is one: another executor in a process"),
        (TensorParallelSettings, "`workers`, of which there are two: a model on several ranks"),
    ):
        yield Component(
            "executor",
            options,
            "paged_backends.executors.workers:WorkersExecutor",
            summary=summary,
        )
    yield Component(
        "communicator",
        ShmSettings,
        "paged_backends.communication.shared_memory:ShmCommunicator",
        rank=20,
        check="paged_backends.communication.shared_memory:unavailable_reason",
        summary="shared memory, on a CPU: ranks of one machine",
    )
    yield Component(
        "communicator",
        GlooSettings,
        "paged_backends.communication.gloo:GlooCommunicator",
        summary="PyTorch's gloo, over TCP: on one machine or several",
    )
    yield Component(
        "communicator",
        NcclSettings,
        "paged_backends.communication.nccl:NcclCommunicator",
        rank=10,
        check="paged_backends.communication.nccl:unavailable_reason",
        summary="NVIDIA's NCCL, between GPUs; can be captured in graphs",
    )
    yield Component(
        "grammar",
        LlguidanceSettings,
        "paged_backends.grammar.llguidance_grammar:LlguidanceGrammar",
        rank=20,
        check="paged_backends.grammar.settings:no_llguidance",
        summary="the package llguidance: refuses what it cannot enforce",
    )
    yield Component(
        "grammar",
        XgrammarSettings,
        "paged_backends.grammar.xgrammar_grammar:XgrammarGrammar",
        rank=10,
        check="paged_backends.grammar.settings:no_xgrammar",
        summary="the package xgrammar: compiles ahead of use",
    )
