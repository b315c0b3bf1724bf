"""The peers, by name."""

from __future__ import annotations

from dataclasses import dataclass

from paged_plugins.bench.peers.llama_cpp import LlamaCpp
from paged_plugins.bench.peers.nano_vllm import NanoVllm
from paged_plugins.bench.peers.openvino import OpenVino
from paged_plugins.bench.peers.paged_core import PagedCore
from paged_plugins.bench.peers.peer_engine import PeerEngine
from paged_plugins.bench.peers.transformers import BATCH, TransformersSingle, TransformersStatic
from paged_plugins.bench.peers.transformers_continuous import TransformersContinuous
from paged_plugins.bench.peers.vllm import Vllm


@dataclass(frozen=True, slots=True)
class Peer:
    """An engine to compare with, and how to install it."""

    name: str
    package: str
    """The package that must be importable."""
    distribution: str
    """The distribution that provides it."""
    kind: type[PeerEngine]
    summary: str


OURS = Peer(
    "paged_core", "paged_core", "paged-core", PagedCore, "this engine, with the settings given"
)
PEERS = {
    peer.name: peer
    for peer in (
        Peer(
            "transformers_static",
            "transformers",
            "transformers",
            TransformersStatic,
            f"transformers generate over batches of {BATCH}",
        ),
        Peer(
            "transformers_single",
            "transformers",
            "transformers",
            TransformersSingle,
            "transformers generate for one request after another",
        ),
        Peer(
            "transformers_continuous",
            "transformers",
            "transformers",
            TransformersContinuous,
            "transformers with continuous batching",
        ),
        Peer(
            "nano_vllm",
            "nanovllm",
            "git+https://github.com/GeeeekExplorer/nano-vllm",
            NanoVllm,
            "nano-vLLM on a GPU",
        ),
        Peer("vllm", "vllm", "vllm", Vllm, "vLLM in one process"),
        Peer(
            "openvino",
            "openvino_genai",
            "openvino-genai",
            OpenVino,
            "OpenVINO GenAI with continuous batching",
        ),
        Peer(
            "llama_cpp",
            "llama_cpp",
            "llama-cpp-python",
            LlamaCpp,
            "llama.cpp with all requests in one batch",
        ),
    )
}
