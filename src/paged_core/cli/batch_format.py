"""The batch format of the OpenAI API: a request a line in, a response a line out.

https://platform.openai.com/docs/guides/batch, for ``/v1/completions`` and
``/v1/chat/completions``. The name of the model in a request is not looked at.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from paged_core.errors import RequestError
from paged_core.text.outputs import CompletionOutput, RequestOutput

_COMPLETIONS, _CHAT = "/v1/completions", "/v1/chat/completions"
_IGNORED = {"model", "user", "metadata", "store", "service_tier"}
_RENAMED = {"max_completion_tokens": "max_tokens"}
_ABSENT: Mapping[str, tuple[Any, ...]] = {
    "stream": (False, None),
    "echo": (False, None),
    "logprobs": (False, None),
    "logit_bias": ({}, None),
    "tools": ([], None),
    "suffix": ("", None),
}
"""What is not supported, and the values that ask for nothing."""


@dataclass(frozen=True, slots=True)
class BatchRequest:
    """One line of a batch file."""

    custom_id: str
    url: str
    values: Mapping[str, Any]
    """The prompt or the messages, and sampling parameters."""

    @classmethod
    def of(cls, line: Mapping[str, Any]) -> Self:
        """Return what a line asks for; its parameters are checked elsewhere.

        Raises:
            RequestError: it is no line of that format, or asks for what is not supported.
        """
        for key, kind in {"custom_id": str, "method": str, "url": str, "body": dict}.items():
            if not isinstance(line.get(key), kind):
                raise RequestError(
                    "a line of a batch has the texts 'custom_id', 'method' and 'url' and the "
                    f"object 'body'; {key!r} is {'wrong' if key in line else 'missing'}"
                )
        if line["method"] != "POST" or line["url"] not in (_COMPLETIONS, _CHAT):
            raise RequestError(
                f"{line['method']} {line['url']} is not there; write POST {_COMPLETIONS} or "
                f"POST {_CHAT}"
            )
        needed = "messages" if line["url"] == _CHAT else "prompt"
        if needed not in line["body"]:
            raise RequestError(f"the body for {line['url']} needs {needed!r}")
        return cls(line["custom_id"], line["url"], dict(_parameters(line["body"])))

    def response(self, output: RequestOutput, model: str) -> dict[str, Any]:
        """Return the line that answers it."""
        if errors := [one.error for one in output.outputs if one.error is not None]:
            return self.failure(errors[0], status=500)
        is_chat = self.url == _CHAT
        generated = sum(len(one.token_ids) for one in output.outputs)
        prompt = len(output.prompt_token_ids)
        body = {
            "id": f"{'chatcmpl' if is_chat else 'cmpl'}-{output.request_id}",
            "object": "chat.completion" if is_chat else "text_completion",
            "created": int(time.time()),
            "model": model,
            "choices": [_choice(one, is_chat=is_chat) for one in output.outputs],
            "usage": {
                "prompt_tokens": prompt,
                "completion_tokens": generated,
                "total_tokens": prompt + generated,
                "prompt_tokens_details": {"cached_tokens": output.num_cached_tokens or 0},
            },
        }
        return self._line(200, body)

    def failure(self, message: str, *, status: int = 400) -> dict[str, Any]:
        """Return the line that says why there is no answer."""
        kind = "invalid_request_error" if status == 400 else "server_error"
        return self._line(status, {"error": {"message": message, "type": kind, "code": status}})

    def _line(self, status: int, body: dict[str, Any]) -> dict[str, Any]:
        response = {"status_code": status, "request_id": self.custom_id, "body": body}
        return {
            "id": f"batch_req_{self.custom_id}",
            "custom_id": self.custom_id,
            "response": response,
            "error": None,
        }


def _parameters(body: Mapping[str, Any]) -> Any:
    for key, value in body.items():
        if key in _ABSENT:
            if value not in _ABSENT[key]:
                raise RequestError(f"{key!r} is not supported in a batch; leave it out")
        elif key not in _IGNORED and value is not None:
            is_tokens = key == "prompt" and isinstance(value, list)
            yield ("prompt_token_ids" if is_tokens else _RENAMED.get(key, key)), value


def _choice(completion: CompletionOutput, *, is_chat: bool) -> dict[str, Any]:
    message = {"role": "assistant", "content": completion.text}
    reason = completion.finish_reason and completion.finish_reason.value
    return {
        "index": completion.index,
        **({"message": message} if is_chat else {"text": completion.text}),
        "logprobs": None,
        "finish_reason": reason,
        "stop_reason": completion.stop_reason,
    }
