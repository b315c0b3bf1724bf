"""The OpenAPI document: all endpoints are in it, and it refers to nothing that is not there."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from paged_plugins.server.http.endpoint import Endpoint
from server.served import Served

pytestmark = pytest.mark.heavy


@pytest.fixture
def document(served: Served) -> dict[str, Any]:
    found: dict[str, Any] = served.ask("GET", "/openapi.json")[1]
    found["routes"] = list(served.server.routes)
    return found


def references(value: Any) -> Iterator[str]:
    """Yield what parts of a document refer to."""
    if isinstance(value, dict):
        if isinstance(value.get("$ref"), str):
            yield value["$ref"]
        value = list(value.values())
    if isinstance(value, list):
        for each in value:
            yield from references(each)


def test_every_endpoint_is_in_it(document: dict[str, Any]) -> None:
    for route in document["routes"]:
        if not isinstance(route, Endpoint):
            continue  # of the page
        path = route.path.replace(":path", "")
        operation = document["paths"][path][route.method.lower()]
        assert operation["summary"]
        assert "200" in operation["responses"]
        assert ("requestBody" in operation) == (route.body is not None)
        named = {each["name"] for each in operation.get("parameters", ())}
        assert named == set(re.findall(r"{(\w+)}", path))


def test_events_are_objects_whose_data_is_a_chunk(document: dict[str, Any]) -> None:
    for path, name in (("/v1/completions", "Completion"), ("/v1/chat/completions", "ChatChunk")):
        answer = document["paths"][path]["post"]["responses"]["200"]
        event = answer["content"]["text/event-stream"]["schema"]
        assert event["type"] == "object"
        assert event["required"] == ["data"]
        assert event["properties"]["data"]["type"] == "string"
        schema = event["properties"]["data"]["contentSchema"]
        assert schema == {"$ref": f"#/components/schemas/{name}"}


def test_operations_have_names_of_their_own(document: dict[str, Any]) -> None:
    names = [
        operation["operationId"]
        for operations in document["paths"].values()
        for operation in operations.values()
    ]
    assert len(names) == len(set(names))


def test_what_it_refers_to_is_there(document: dict[str, Any]) -> None:
    del document["routes"]
    found = set(references(document))
    assert len(found) > 20
    for each in found:
        place: Any = document
        for key in each.removeprefix("#/").split("/"):
            place = place[key]
