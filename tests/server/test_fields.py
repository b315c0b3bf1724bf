"""Fields that clients send: those without effect, what is skipped, what is named otherwise."""

from __future__ import annotations

import re
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any, get_args, get_type_hints

import msgspec
import pytest
from anthropic.types.beta import BetaContentBlockParam
from openai.types import Reasoning
from openai.types.responses import Response, ResponseIncludable
from openai.types.responses.response_input_item_param import ResponseInputItemParam

from paged_plugins.server.allowed import allowed_values
from paged_plugins.server.anthropic.protocol import RAN_ELSEWHERE, MessagesRequest
from paged_plugins.server.anthropic.reading import Reading
from paged_plugins.server.openai.protocol import ChatRequest
from paged_plugins.server.responses.protocol import (
    Included,
    InputItem,
    ResponsesRequest,
    Skipped,
)
from server.served import Served
from server.streams import named_events, response_of

pytestmark = pytest.mark.heavy

CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"
COUNTS = {RESPONSES: f"{RESPONSES}/input_tokens", MESSAGES: f"{MESSAGES}/count_tokens"}
BODIES: dict[str, tuple[Any, str]] = {
    CHAT: (ChatRequest, "messages"),
    RESPONSES: (ResponsesRequest, "input"),
    MESSAGES: (MessagesRequest, "messages"),
}
WARNING = "x-paged-core-warning"
SAID: Any = [{"role": "user", "content": "x"}]
SCHEMA = {"properties": {"a": {"enum": ["b"]}}, "required": ["a"], "additionalProperties": False}
SEARCH = {"type": "web_search_20250305", "name": "web_search", "max_uses": 8}


@pytest.fixture(scope="module")
def calling() -> Iterator[Served]:
    with Served(tool_parser="hermes") as served:
        yield served


def without_effect(kind: Any, path: str = "") -> Iterator[str]:
    """Yield the fields of a body that are not read, and those of its parts."""
    if isinstance(kind, msgspec.inspect.StructType):
        for field in kind.fields:
            where = f"{path}.{field.encode_name}" if path else field.encode_name
            if isinstance(field.type, msgspec.inspect.RawType):
                yield where
            else:
                yield from without_effect(field.type, where)
    for each in getattr(kind, "types", ()):
        yield from without_effect(each, path)
    if (item := getattr(kind, "item_type", None)) is not None:
        yield from without_effect(item, f"{path}[]")


def fields_of(path: str) -> list[str]:
    return list(dict.fromkeys(without_effect(msgspec.inspect.type_info(BODIES[path][0]))))


USE = {"type": "tool_use", "id": "1", "name": "f", "input": {}}
RESULT = {"type": "tool_result", "tool_use_id": "1"}
CALL = {"id": "1", "function": {"name": "f", "arguments": "{}"}}


def told(path: str) -> dict[str, Any]:
    """Return a request that has parts of all kinds."""
    text = {"type": "input_text" if path == RESPONSES else "text", "text": "x"}
    said = {"role": "user", "content": [text]}
    if path == RESPONSES:
        thought = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "x"}]}
        parts: Any = {"text": {}, "reasoning": {}, "stream_options": {}}
        return {"input": [said, thought], **parts, "max_output_tokens": 4, "temperature": 0}
    if path == CHAT:
        calls = {"role": "assistant", "content": "x", "tool_calls": [CALL]}
        result = {"role": "tool", "content": "x", "tool_call_id": "1"}
        return {"messages": [said, calls, result], "max_tokens": 4, "temperature": 0}
    thought = {"type": "thinking", "thinking": "x"}
    made = {"role": "assistant", "content": [thought, {"type": "redacted_thinking"}, USE]}
    given = {"role": "user", "content": [{**RESULT, "content": [text]}]}
    parts = {"system": [text], "thinking": {"type": "adaptive"}, "output_config": {}}
    return {"messages": [said, made, given], **parts, "max_tokens": 4, "temperature": 0}


def put(into: Any, path: str, value: Any) -> None:
    """Set a field wherever its parent is there and may have it."""
    head, _, rest = path.partition(".")
    if not rest:
        into[head] = value
    elif head.endswith("[]"):
        inner = into.get(head[:-2])
        for each in inner if isinstance(inner, list) else ():
            if may_have(each, rest):
                put(each, rest, value)
    elif head in into:
        put(into[head], rest, value)


def may_have(part: dict[str, Any], name: str) -> bool:
    of = {"citations": "text", "signature": "thinking", "data": "redacted_thinking"}
    kinds = {"caller": ("tool_use",), "toolset_name": ("tool_use", "tool_result")}
    kind = part.get("type", "")
    return kind == of.get(name, kind) and kind in kinds.get(name, (kind,))


@pytest.mark.parametrize("value", [True, "x", {"a": [1]}], ids=["true", "text", "object"])
@pytest.mark.parametrize("path", BODIES)
def test_fields_without_effect_change_no_answer(served: Served, path: str, value: Any) -> None:
    answers = []
    for fields in ((), fields_of(path)):
        body = deepcopy(told(path))
        for name in fields:
            put(body, name, value)
        status, found, headers = served.ask("POST", path, body)
        assert status == 200, found
        assert WARNING not in headers
        answers.append(text_of(found))
    assert answers[0] == answers[1]


def test_parts_that_are_read_later_have_such_fields_too(calling: Served) -> None:
    tool = {"name": "f", "input_schema": {}, "strict": True, "eager_input_streaming": True}
    asked: Any = {"messages": SAID, "tools": [tool], "max_tokens": 1}
    assert calling.ask("POST", MESSAGES, asked)[0] == 200
    call = {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"}
    parts = [{"type": "input_text", "text": "x", "annotations": []}]
    output = {"type": "function_call_output", "call_id": "1", "output": parts}
    asked = {"input": [*SAID, call, output], "max_output_tokens": 1}
    assert calling.ask("POST", RESPONSES, asked)[0] == 200


def test_threads_are_refused_so_that_clients_go_on_without(served: Served) -> None:
    asked: Any = {"messages": SAID, "max_tokens": 1, "thread": {"type": "create"}}
    for path in (MESSAGES, COUNTS[MESSAGES]):
        status, found, _ = served.ask("POST", path, asked)
        assert status == 400
        assert found["error"]["details"]["error_code"] == "thread_unsupported_request"


def text_of(found: Any) -> Any:
    if "choices" in found:
        return found["choices"][0]["message"]["content"]
    return (found["content"] if "content" in found else found["output"][0]["content"])[0]["text"]


def test_the_page_lists_the_fields_without_effect() -> None:
    page = (Path(__file__).parents[2] / "docs/serving.md").read_text()
    table = page.partition("### Without effect")[2].partition("\n## ")[0]
    for path in BODIES:
        row = next(line for line in table.splitlines() if line.startswith(f"| `{path}` |"))
        listed = set(re.findall(r"`([\w.]+)`", row.split("|")[2]))
        assert listed == {re.sub(r".*\[\]\.", "", name) for name in fields_of(path)}, path


NULLS = {
    "/v1/completions": {"logprobs"},
    CHAT: {"refusal", "logprobs"},
    RESPONSES: {*Response.model_fields, *Reasoning.model_fields},
    MESSAGES: {"stop_sequence"},
}
"""By path: keys that the API has as null where they have no value."""


def nulls_of(found: Any) -> set[str]:
    values = found.items() if isinstance(found, dict) else enumerate(found)
    inner = [(key, value) for key, value in values if isinstance(value, dict | list)]
    own = {key for key, value in values if value is None} if isinstance(found, dict) else set()
    return own.union(*(nulls_of(value) for _, value in inner))


@pytest.mark.parametrize("path", NULLS)
def test_keys_without_a_value_are_left_out(served: Served, path: str) -> None:
    asked: Any = told(path) if path in BODIES else {"prompt": "x", "max_tokens": 2}
    assert nulls_of(served.ask("POST", path, asked)[1]) <= NULLS[path]


def test_programs_that_tokenise_for_themselves_are_told_how(served: Served) -> None:
    info = served.ask("GET", "/tokenizer_info")[1]
    assert info["eos_token"] and "message" in info["chat_template"]
    assert info["max_model_len"] == served.service.front_end.max_model_len


# ---------------------------------------------------------------------- coding agents

BASH = {"name": "Bash", "description": "runs", "input_schema": {"$schema": "x", **SCHEMA}}
CLAUDE_CODE: dict[str, Any] = {
    "model": None,
    "max_tokens": 4,
    "system": [
        {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1; cch=00000;"},
        {"type": "text", "text": "You are an agent.", "cache_control": {"type": "ephemeral"}},
    ],
    "messages": [{"role": "user", "content": [{"type": "text", "text": "say hi"}]}],
    "tools": [BASH, {**BASH, "name": "Later", "defer_loading": True}, SEARCH],
    "metadata": {"user_id": '{"session_id":"1"}'},
    "thinking": {"type": "adaptive", "display": "omitted"},
    "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
    "output_config": {"effort": "high"},
    "mcp_servers": [],
    "speed": "fast",
}
CODEX: dict[str, Any] = {
    "stream": True,
    "max_output_tokens": 300,
    "input": [
        {
            "type": "message",
            "id": "msg_1",
            "role": "user",
            "content": [{"type": "input_text", "text": "say hi"}],
            "internal_chat_message_metadata_passthrough": {"turn_id": "1"},
        },
    ],
    "tools": [
        {"type": "function", "name": "exec", "strict": False, "parameters": SCHEMA},
        {
            "type": "namespace",
            "name": "mcp__docs__",
            "description": "of a server",
            "tools": [{"type": "function", "name": "look", "parameters": SCHEMA, "strict": False}],
        },
        {"type": "web_search", "external_web_access": False},
        {"type": "custom", "name": "apply_patch", "format": {"type": "grammar", "syntax": "lark"}},
    ],
    "tool_choice": "auto",
    "parallel_tool_calls": True,
    "reasoning": {"summary": "auto"},
    "store": False,
    "include": ["reasoning.encrypted_content"],
    "prompt_cache_key": "1",
    "client_metadata": {"session_id": "1"},
    "text": {"verbosity": "low"},
}


def counted(served: Served, path: str, body: dict[str, Any]) -> int:
    status, found, _ = served.ask("POST", COUNTS[path], body)
    assert status == 200, found
    number: int = found["input_tokens"]
    return number


def test_a_request_of_claude_code_is_served(calling: Served) -> None:
    betas = {"anthropic-beta": "claude-code-20250219,unknown-2030-01-01"}
    for stream in (False, True):
        body = {**CLAUDE_CODE, "stream": stream}
        status, found, headers = calling.ask("POST", f"{MESSAGES}?beta=true", body, betas)
        assert status == 200, found
        assert "web_search_20250305" in headers[WARNING]
    usage = calling.ask("POST", MESSAGES, {**CLAUDE_CODE, "cache_salt": "1"})[1]["usage"]
    assert counted(calling, MESSAGES, CLAUDE_CODE) == usage["input_tokens"]


@pytest.mark.parametrize("strips", [True, False])
def test_a_line_that_changes_does_not_empty_the_prefix_cache(strips: bool) -> None:
    routes = ["openai", {"name": "anthropic", "strip_billing_line": strips}]
    with Served(routes=routes, tool_parser="hermes") as served:
        for form in (list, str):
            cached = []
            for number in "12":
                line, rest = f"x-anthropic-billing-header: cch={number * 5};", f"Be {form}. " * 40
                system: Any = f"{line}\n{rest}"
                if form is list:
                    system = [{"type": "text", "text": text} for text in (line, rest)]
                found = served.ask("POST", MESSAGES, {**CLAUDE_CODE, "system": system})[1]
                cached.append(found["usage"]["cache_read_input_tokens"])
            assert (cached[1] > 100) == strips, (form, cached)


def test_a_tool_whose_loading_is_deferred_is_there_once_it_is_named() -> None:
    later = {**BASH, "name": "Later", "defer_loading": True}
    result = {**RESULT, "content": [{"type": "tool_reference", "tool_name": "Later"}]}
    found = [{"role": "assistant", "content": [USE]}, {"role": "user", "content": [result]}]

    def changed(kind: str, **tool: Any) -> list[Any]:
        return [{"role": "system", "content": [{"type": kind, "tool": tool}]}]

    reference = {"type": "tool_reference", "name": "Later"}
    definition = {"type": "tool_definition", "definition": {**BASH, "name": "Later"}}
    added, removed = changed("tool_addition", **reference), changed("tool_removal", **reference)

    def names(tools: list[Any], more: list[Any]) -> list[str]:
        body = {"messages": [*SAID, *more, *SAID], "max_tokens": 1, "tools": tools}
        read = Reading(msgspec.convert(body, MessagesRequest), strips_billing_line=True)
        return [tool["function"]["name"] for tool in read.chat().tools or ()]

    search = {"type": "tool_search_tool_bm25_20251119", "name": "tool_search_tool_bm25"}
    assert names([BASH, later], []) == ["Bash"]
    assert names([BASH, later], found) == names([BASH, later], added) == ["Bash", "Later"]
    assert names([BASH], changed("tool_addition", **definition)) == ["Bash", "Later"]
    assert names([BASH, later], [*added, *removed]) == ["Bash"]
    assert names([BASH, later, search], []) == ["Bash", "Later"], "nothing can search for it"


def test_a_message_of_the_system_that_is_cleared_is_not_shown() -> None:
    once = {"role": "system", "content": "Once.", "clear_at": "next_user_message"}

    def texts(*messages: Any) -> list[Any]:
        body = msgspec.convert({"messages": [*messages], "max_tokens": 1}, MessagesRequest)
        return [each.content for each in Reading(body, strips_billing_line=True).chat().messages]

    assert texts(*SAID, once) == ["x", "Once."]
    assert texts(*SAID, once, *SAID) == ["x", "x"]


def texts_of(content: list[Any], role: str = "user") -> list[Any]:
    """Return the texts of the messages that blocks become."""
    body = {"messages": [*SAID, {"role": role, "content": content}], "max_tokens": 1}
    made = msgspec.json.decode(msgspec.json.encode(body), type=MessagesRequest)
    return [each.content for each in Reading(made, strips_billing_line=True).chat().messages[1:]]


TEXT: Any = {"type": "text", "text": "a"}
IN_PARTS = {"type": "content", "content": [TEXT, TEXT]}
PLAIN = {"type": "text", "media_type": "text/plain", "data": "b"}


@pytest.mark.parametrize(
    ("block", "text"),
    [
        ({"type": "document", "source": PLAIN, "title": "t", "context": "c"}, "t\nc\nb"),
        ({"type": "document", "source": IN_PARTS}, "a\na"),
        ({"type": "search_result", "title": "t", "source": "s", "content": [TEXT]}, "t\ns\na"),
    ],
    ids=["document", "document in parts", "search result"],
)
def test_blocks_that_have_text_are_text(block: Any, text: str) -> None:
    assert texts_of([TEXT, block]) == [f"a\n{text}"]
    assert texts_of([{**RESULT, "content": [block]}]) == [text]


FOUND = {"type": "web_search_result", "title": "t", "url": "u", "encrypted_content": "e"}
PDF = {"type": "base64", "media_type": "application/pdf", "data": "x"}
FETCHED = {"url": "u", "content": {"type": "document", "title": "t", "source": PDF}}
PRINTED = {"type": "code_execution_result", "stdout": "s", "stderr": "", "return_code": 0}


RAN: list[tuple[str, Any, list[str]]] = [
    ("server_tool_use", {"name": "web_search", "input": {"query": "q"}}, ["web_search\nq"]),
    ("web_search_tool_result", {"content": [FOUND, FOUND]}, ["t\nu\nt\nu"]),
    ("web_fetch_tool_result", {"content": FETCHED}, ["u\nt"]),
    ("code_execution_tool_result", {"content": PRINTED}, ["s\n0"]),
    ("mcp_tool_result", {"content": [TEXT]}, ["a"]),
    ("compaction", {"content": "summary", "signature": "s"}, ["summary"]),
    ("container_upload", {"file_id": "f"}, []),
]


@pytest.mark.parametrize(("kind", "block", "texts"), RAN, ids=[each[0] for each in RAN])
def test_what_a_tool_of_another_server_said_is_text(
    kind: str, block: Any, texts: list[str]
) -> None:
    made = {"type": kind, "id": "i", "tool_use_id": "i", "cache_control": {"ttl": "1h"}, **block}
    assert texts_of([made], "assistant") == texts


def test_blocks_of_tools_of_other_servers_are_taken(calling: Served) -> None:
    read = {"text", "document", "search_result", "thinking", "redacted_thinking", "tool_use"}
    read |= {"tool_result", "tool_addition", "tool_removal"}
    kinds = set(re.findall(r"Literal\['(\w+)'\]", tags_of(BetaContentBlockParam)))
    assert kinds - read == {*RAN_ELSEWHERE, "image"}
    blocks = [{"type": kind, "id": "1"} for kind in RAN_ELSEWHERE]
    said = [*SAID, {"role": "assistant", "content": [TEXT, *blocks]}, *SAID]
    status, found, headers = calling.ask("POST", MESSAGES, {"messages": said, "max_tokens": 1})
    assert status == 200, found
    assert all(kind in headers[WARNING] for kind in RAN_ELSEWHERE)


def tags_of(union: Any) -> str:
    params = [each for each in get_args(union) if isinstance(each, type)]
    return " ".join(str(get_type_hints(each)["type"]) for each in params)


CUSTOM: Any = {"type": "custom", "custom": {"name": "patch", "format": {"type": "text"}}}
HOSTED = [
    *({"type": kind} for kind in ("web_search", "file_search", "image_generation")),
    {"type": "code_interpreter", "container": {"type": "auto"}},
    {"type": "mcp", "server_label": "s", "server_url": "u"},
]


def test_custom_tools_and_searches_of_chats_are_skipped(calling: Served) -> None:
    function = {"type": "function", "function": {"name": "f", "parameters": SCHEMA}}
    called = {"id": "1", "type": "custom", "custom": {"name": "patch", "input": "x"}}
    result = {"role": "tool", "tool_call_id": "1", "content": "y"}
    history = [*SAID, {"role": "assistant", "tool_calls": [called]}, result]
    only = {"messages": history, "tools": [function], "max_tokens": 4, "temperature": 0}
    both = {**only, "tools": [CUSTOM, *HOSTED, function], "web_search_options": {}}
    plain, more = (calling.ask("POST", CHAT, body) for body in (only, both))
    assert text_of(plain[1]) == text_of(more[1])
    assert plain[1]["usage"] == more[1]["usage"] | {
        "prompt_tokens_details": plain[1]["usage"]["prompt_tokens_details"]
    }
    assert WARNING not in plain[2]
    names = ", ".join(["patch (custom)", *(tool["type"] for tool in HOSTED), "web_search_options"])
    assert names in more[2][WARNING]
    as_function = {**called, "type": "function", "custom": None}
    as_function["function"] = {"name": "patch", "arguments": '{"input": "x"}'}
    history[1] = {"role": "assistant", "tool_calls": [as_function]}
    assert (
        calling.ask("POST", CHAT, only)[1]["usage"]["prompt_tokens"]
        == (plain[1]["usage"]["prompt_tokens"])
    )


def test_the_smallest_top_p_takes_the_best_token(served: Served) -> None:
    best = told(CHAT)
    answers = [
        text_of(served.ask("POST", CHAT, body)[1])
        for body in (best, best | {"temperature": 2, "top_p": 0})
    ]
    assert answers[0] == answers[1]


def test_deep_arguments_of_a_call_are_a_text(served: Served) -> None:
    for levels in (65, 100_000):
        arguments = '{"a":' * levels + "1" + "}" * levels
        call = {**CALL, "function": {"name": "f", "arguments": arguments}}
        said = [*SAID, {"role": "assistant", "tool_calls": [call]}, *SAID]
        status, found, _ = served.ask("POST", CHAT, {"messages": said, "max_tokens": 1})
        assert status == 200 or "maximum context length" in found["error"]["message"], found


def test_a_request_of_codex_is_served(calling: Served) -> None:
    status, text, headers = calling.ask("POST", RESPONSES, CODEX)
    assert status == 200, text
    assert "web_search" in headers[WARNING] and "apply_patch (custom)" in headers[WARNING]
    assert named_events(text)[-1][0] in ("response.completed", "response.incomplete")
    assert counted(calling, RESPONSES, CODEX) > 0


def test_a_request_of_open_webui_is_served(calling: Served) -> None:
    """Parameters of a model are sent as they are set; titles are asked for in the same way."""
    said = [{"type": "text", "text": "x"}]
    asked: Any = {
        "stream": True,
        "stream_options": {"include_usage": True},
        "messages": [{"role": "system", "content": "Be short."}, {"role": "user", "content": said}],
        "tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}],
        **{"temperature": 0.8, "top_p": 0.9, "top_k": 40, "min_p": 0.1, "seed": 1, "max_tokens": 4},
        **{"frequency_penalty": 0.1, "presence_penalty": 0.1, "stop": ["zz"]},
        **{"logit_bias": {"1": -100}, "reasoning_effort": "medium"},
    }
    headers = {"X-OpenWebUI-User-Name": "Ann", "X-OpenWebUI-Chat-Id": "1"}
    status, found, _ = calling.ask("POST", CHAT, asked, headers=headers)
    assert (status, found.count("[DONE]")) == (200, 1)
    title = {"messages": SAID, "stream": False, "max_tokens": 4}
    assert calling.ask("POST", CHAT, title, headers=headers)[0] == 200


def test_functions_of_a_namespace_are_called_by_both_names(calling: Served) -> None:
    body = {**CODEX, "tools": CODEX["tools"][1:2], "tool_choice": "required"}
    body["parallel_tool_calls"] = False
    events = [event for _, event in named_events(calling.ask("POST", RESPONSES, body)[1])]
    whole = calling.ask("POST", RESPONSES, {**body, "stream": False})[1]
    for made in (response_of(events), whole):
        (call,) = made["output"]
        assert (call["namespace"], call["name"]) == ("mcp__docs__", "look")
        output = {"type": "function_call_output", "call_id": call["call_id"], "output": "y"}
        again = {**CODEX, "input": [*CODEX["input"], call, output], "stream": False}
        status, found, _ = calling.ask("POST", RESPONSES, again)
        assert status == 200, found
    one = {"input": [call, output]}
    named = {**call, "name": "mcp__docs__look", "namespace": None}
    assert counted(calling, RESPONSES, one) == counted(
        calling, RESPONSES, {"input": [named, output]}
    )


SKIPPED = get_args(Skipped)


@pytest.mark.parametrize(
    "items",
    [
        [
            {"type": "custom_tool_call", "call_id": "1", "name": "patch", "input": "x"},
            {"type": "custom_tool_call_output", "call_id": "1", "output": "done"},
        ],
        [
            {"type": "local_shell_call", "call_id": "1", "action": {"command": ["ls"]}},
            {"type": "function_call_output", "call_id": "1", "output": "a"},
        ],
        [
            {"type": "shell_call", "call_id": "1", "action": {"commands": ["ls"]}},
            {"type": "shell_call_output", "call_id": "1", "output": [{"stdout": "a"}]},
        ],
        [
            {"type": "reasoning", "summary": [], "content": None, "encrypted_content": "gAAA"},
            {"type": "message", "role": "assistant", "content": "x", "phase": "commentary"},
        ],
        [{"type": kind, "id": "1", "action": "x", "encrypted_content": "x"} for kind in SKIPPED],
        [
            {"type": "tool_search_call", "call_id": "1", "arguments": {"query": "x"}},
            {"type": "tool_search_output", "call_id": "1", "tools": CODEX["tools"][1:2]},
        ],
    ],
    ids=lambda items: items[0]["type"],
)
def test_items_of_all_kinds_are_taken_back(calling: Served, items: list[Any]) -> None:
    status, found, headers = calling.ask(
        "POST", RESPONSES, {"input": [*SAID, *items, *SAID], "max_output_tokens": 1}
    )
    assert status == 200, found
    skipped = [each["type"] for each in items if each["type"] in SKIPPED]
    assert all(kind in headers.get(WARNING, "") for kind in skipped)
    assert (WARNING in headers) == bool(skipped)


def test_items_of_openai_s_package_are_known_and_what_it_includes() -> None:
    kinds = set(re.findall(r"Literal\['(\w+)'\]", tags_of(ResponseInputItemParam)))
    assert kinds - {"item_reference"} <= {*allowed_values(InputItem, "type")}
    assert set(get_args(ResponseIncludable)) == set(get_args(Included))
