"""Options of the server and of what it serves."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, PositiveFloat, PositiveInt, model_validator

from paged_core.plugins.component import ComponentSettings
from paged_core.settings.types import memory_size

Bytes = Annotated[int, BeforeValidator(memory_size)]


class HttpSettings(ComponentSettings):
    """Options of :class:`~paged_plugins.server.http.server.HttpServer`."""

    name: Literal["http"] = "http"
    host: str = Field("127.0.0.1", description="the address to listen at; 0.0.0.0: all")
    port: int = Field(8000, ge=0, le=65535, description="0: a free one")
    engine: Literal["process", "thread"] = Field(
        "process", description="where it runs: in a process of its own, or in a thread of this one"
    )
    hang_timeout: PositiveFloat = Field(
        10.0,
        description="seconds that the engine's process may show no life, beyond what it expects a "
        "step to take, before it is started again",
    )
    served_model_name: tuple[str, ...] = Field(
        (), description="what requests may call the model; none: its name in the settings"
    )
    api_key_file: Path | None = Field(
        None, description="a file with a key a line; keys are also taken from PAGED_CORE_API_KEY"
    )
    allowed_hosts: tuple[str, ...] = Field(
        (), description="names in Host besides addresses, localhost and `host`; *.x, * match"
    )
    allowed_origins: tuple[str, ...] = Field(
        (), description="pages of other sites that may ask: https://x.org, or *"
    )
    tls_certificate: Path | None = Field(None, description="a PEM file: serve HTTPS")
    tls_key: Path | None = Field(None, description="its private key, if in another file")
    max_body_size: Bytes = Field(32 << 20, description="of a request, in bytes (32MiB)")
    max_choices: PositiveInt = Field(
        1024, description="sequences of a request: its prompts by n or best_of"
    )
    max_logprobs: int = Field(
        20,
        ge=-1,
        description="best tokens whose log-probabilities a request may ask for; -1: any number, "
        "and with -1 all",
    )
    max_waiting_requests: PositiveInt = Field(
        1024, description="waiting for their first token; more are refused with 429"
    )
    max_waiting_tokens: PositiveInt = Field(
        1 << 20, description="of the prompts of these; more are refused with 429"
    )
    read_timeout: PositiveFloat = Field(30.0, description="seconds to receive a request in")
    ping_interval: PositiveFloat = Field(15.0, description="seconds of silence before a ping")
    slow_reader_timeout: PositiveFloat = Field(
        60.0, description="seconds that a reader may take none of what is sent to it"
    )
    grace_period: float = Field(
        30.0, ge=0, description="seconds that running requests have to finish in after SIGTERM"
    )
    access_log: bool = Field(True, description="log a line for each request")

    @model_validator(mode="after")
    def _key_of_a_certificate(self) -> HttpSettings:
        if self.tls_key and not self.tls_certificate:
            raise ValueError("tls_key is the key of a certificate; set tls_certificate, too")
        return self


class OpenAISettings(ComponentSettings):
    """Options of :class:`~paged_plugins.server.openai.routes.OpenAIRoutes`."""

    name: Literal["openai"] = "openai"


class ResponsesSettings(ComponentSettings):
    """Options of :class:`~paged_plugins.server.responses.routes.ResponsesRoutes`."""

    name: Literal["responses"] = "responses"


class AnthropicSettings(ComponentSettings):
    """Options of :class:`~paged_plugins.server.anthropic.routes.AnthropicRoutes`."""

    name: Literal["anthropic"] = "anthropic"
    strip_billing_line: bool = Field(
        True,
        description="leave the line `x-anthropic-billing-header: ...` of Claude Code out of system "
        "prompts: it is another one in each request, and would empty the prefix cache",
    )


class PageSettings(ComponentSettings):
    """Options of :class:`~paged_plugins.server.page.routes.Page`."""

    name: Literal["page"] = "page"


class HermesSettings(ComponentSettings):
    """JSON between ``<tool_call>`` and ``</tool_call>``."""

    name: Literal["hermes"] = "hermes"


class Llama3JsonSettings(ComponentSettings):
    """An answer that is JSON from its first letter on."""

    name: Literal["llama3_json"] = "llama3_json"


class MistralSettings(ComponentSettings):
    """``[TOOL_CALLS]``, then a list of JSON, or a name and its arguments."""

    name: Literal["mistral"] = "mistral"


class PythonicSettings(ComponentSettings):
    """An answer that is a list of calls as Python writes them."""

    name: Literal["pythonic"] = "pythonic"


class Llama4PythonicSettings(ComponentSettings):
    """Calls as Python writes them, between marks or where the answer begins."""

    name: Literal["llama4_pythonic"] = "llama4_pythonic"


class GemmaSettings(ComponentSettings):
    """Calls as Python writes them in a block ``tool_code``."""

    name: Literal["gemma"] = "gemma"


class Qwen3CoderSettings(ComponentSettings):
    """Arguments between tags ``<parameter=x>``."""

    name: Literal["qwen3_coder"] = "qwen3_coder"


class Glm4Settings(ComponentSettings):
    """Arguments between tags ``<arg_key>`` and ``<arg_value>``."""

    name: Literal["glm4"] = "glm4"


class KimiK2Settings(ComponentSettings):
    """Names and JSON between marks, in a section."""

    name: Literal["kimi_k2"] = "kimi_k2"


class DeepseekV3Settings(ComponentSettings):
    """Names and JSON in a fence between marks, in a section."""

    name: Literal["deepseek_v3"] = "deepseek_v3"


class DeepseekV31Settings(ComponentSettings):
    """Names and JSON between marks, in a section."""

    name: Literal["deepseek_v31"] = "deepseek_v31"


class GptOssSettings(ComponentSettings):
    """Messages to functions in the format Harmony."""

    name: Literal["gpt_oss"] = "gpt_oss"


class GptOssReasoningSettings(ComponentSettings):
    """Messages on the channel ``analysis`` in the format Harmony."""

    name: Literal["gpt_oss"] = "gpt_oss"


class Qwen3Settings(ComponentSettings):
    """Thoughts between ``<think>`` and ``</think>``; the prompt may have the first mark."""

    name: Literal["qwen3"] = "qwen3"


class DeepseekR1Settings(ComponentSettings):
    """Thoughts from the beginning to ``</think>``, whether or not the first mark is there."""

    name: Literal["deepseek_r1"] = "deepseek_r1"


class NoReasoningSettings(ComponentSettings):
    """All text is the answer."""

    name: Literal["none"] = "none"
