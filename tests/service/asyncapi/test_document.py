"""The AsyncAPI document is valid, complete and reproducible."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from copy import deepcopy
from typing import TYPE_CHECKING, Any

import pytest

from meshfleet.cli import main
from meshfleet.protocol.codes import Kind, Operation
from meshfleet.service.asyncapi import build_asyncapi_document
from meshfleet.service.asyncapi.document import ServerDescription
from tests.row_tables import each_row
from tests.service.asyncapi.validator import validate_documents

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

DOCUMENT = build_asyncapi_document()
OTHER_DOCUMENT = build_asyncapi_document(
    (
        ServerDescription("mqtt-tls", "[2001:db8::1]:8883", "secure-mqtt", "Over TLS."),
        ServerDescription("mqtt-ws", "fleet.example.org:443", "wss", "In WebSockets.", "/mqtt"),
    ),
    "site/7",
)


# --- Validity ---


@pytest.mark.rule("rest-162")
def test_the_document_is_valid_asyncapi_3_0() -> None:
    assert [each["asyncapi"] for each in (DOCUMENT, OTHER_DOCUMENT)] == ["3.0.0"] * 2
    *faults, faults_of_invalid = validate_documents(
        [DOCUMENT, OTHER_DOCUMENT, _build_invalid_document(_dangle_reference)]
    )
    assert faults == [[], []]
    assert faults_of_invalid, "the parser accepts an invalid document"


def _remove_title(document: dict[str, Any]) -> None:
    del document["info"]["title"]


def _set_unknown_action(document: dict[str, Any]) -> None:
    document["operations"]["send-read"]["action"] = "whisper"


def _dangle_reference(document: dict[str, Any]) -> None:
    document["operations"]["send-read"]["channel"]["$ref"] = "#/channels/nowhere"


def _set_foreign_message(document: dict[str, Any]) -> None:
    foreign = "#/channels/report-rssi/messages/rssi"
    document["operations"]["receive-heartbeat"]["messages"] = [{"$ref": foreign}]


def _break_schema(document: dict[str, Any]) -> None:
    document["components"]["schemas"]["Heartbeat"]["type"] = "thing"


def _break_binding(document: dict[str, Any]) -> None:
    document["operations"]["receive-rssi"]["bindings"]["mqtt"]["qos"] = 3


def _build_invalid_document(change: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    document = deepcopy(DOCUMENT)
    change(document)
    return document


@pytest.mark.part("variants")
def test_a_document_without_servers_is_valid() -> None:
    assert validate_documents([build_asyncapi_document(())]) == [[]]


@pytest.mark.part("variants")
def test_the_parser_refuses_every_invalid_document() -> None:
    changes = (_remove_title, _set_unknown_action, _set_foreign_message, _break_schema, _break_binding)
    verdicts = validate_documents([_build_invalid_document(change) for change in changes])
    accepted = [change.__name__ for change, faults in zip(changes, verdicts, strict=True) if not faults]
    assert accepted == []


def test_every_reference_resolves_and_every_component_is_used() -> None:
    used = set(re.findall(r'"\$ref": "#/([^"]+)"', json.dumps(DOCUMENT)))
    for reference in used:
        node = DOCUMENT
        for step in reference.split("/"):
            node = node[step]
    components = {
        f"components/{section}/{name}" for section, named in DOCUMENT["components"].items() for name in named
    }
    assert components <= used


# --- Completeness ---


@pytest.mark.rule("rest-162")
@each_row("kind", list(Kind))
def test_every_kind_of_report_is_received(kind: Kind) -> None:
    operation = DOCUMENT["operations"][f"receive-{kind}"]
    assert operation["action"] == "receive"
    assert "reply" not in operation
    assert operation["messages"] == [{"$ref": f"#/channels/report-{kind}/messages/{kind}"}]


@pytest.mark.rule("rest-162")
@each_row("suffix", ["", "-to-all"])
@each_row("code", list(Operation))
def test_every_operation_is_sent_with_its_response_as_reply(code: Operation, suffix: str) -> None:
    operation = DOCUMENT["operations"][f"send-{code}{suffix}"]
    assert operation["action"] == "send"
    assert operation["messages"][0]["$ref"].endswith(f"/messages/{code}-request")
    assert ("reply" in operation) is code.is_answered
    assert (f"response-{code}" in DOCUMENT["channels"]) is code.is_answered
    if code.is_answered:
        channel = {"$ref": f"#/channels/response-{code}"}
        message = {"$ref": f"#/channels/response-{code}/messages/{code}-response"}
        assert operation["reply"] == {"channel": channel, "messages": [message]}
        for name in (f"{code}-request", f"{code}-response"):
            correlation = DOCUMENT["components"]["messages"][name]["correlationId"]["$ref"].rpartition("/")[2]
            correlation_id = DOCUMENT["components"]["correlationIds"][correlation]
            assert correlation_id["location"] == "$message.payload#/id"


@pytest.mark.rule("rest-162")
def test_a_firmware_request_of_a_gateway_has_a_reply() -> None:
    operation = DOCUMENT["operations"]["receive-firmware-question"]
    assert operation["action"] == "receive"
    assert operation["reply"]["channel"] == {"$ref": "#/channels/firmware-answer"}


@pytest.mark.rule("rest-162")
def test_there_are_no_other_operations() -> None:
    assert len(DOCUMENT["operations"]) == len(Kind) + 2 * len(Operation) + 1


def test_every_channel_is_used_by_an_operation() -> None:
    used = set(re.findall(r'"#/channels/([^"/]+)"', json.dumps(DOCUMENT["operations"])))
    assert used == set(DOCUMENT["channels"])


def test_all_messages_have_qos_1_and_are_not_retained() -> None:
    for operation in DOCUMENT["operations"].values():
        assert operation["bindings"]["mqtt"]["qos"] == 1
        assert operation["bindings"]["mqtt"]["retain"] is False


def test_everything_has_a_title_a_description_and_a_known_tag() -> None:
    tags = {tag["name"] for tag in DOCUMENT["info"]["tags"]}
    for section in (DOCUMENT["channels"], DOCUMENT["operations"], DOCUMENT["components"]["messages"]):
        for each in section.values():
            assert each["title"]
            assert each["description"]
            assert {tag["name"] for tag in each["tags"]} <= tags
    assert "from the side of the service" in DOCUMENT["info"]["description"]


def test_no_text_contains_rule_numbers_or_python_values() -> None:
    for text in _list_texts(DOCUMENT):
        assert not re.search(r"\b(report|request|response|ack|firmware|topic|rest|id)-\d", text)
        assert "None" not in text


# --- Reproducibility ---


@pytest.mark.rule("rest-162")
def test_another_process_prints_the_same_bytes(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    program = [sys.executable, "-c", "from meshfleet.cli import main; main(['asyncapi'])"]
    printed = subprocess.run(program, capture_output=True, check=True).stdout
    main(["asyncapi"], standalone_mode=False)
    assert capfdbinary.readouterr().out == printed
    assert json.loads(printed) == DOCUMENT


def test_the_document_is_cached() -> None:
    assert build_asyncapi_document()["channels"] is build_asyncapi_document(())["channels"]


def _list_texts(part: object) -> Iterator[str]:
    if isinstance(part, dict):
        for key, value in part.items():
            yield from [value] if key in {"description", "summary", "title"} else _list_texts(value)
    elif isinstance(part, list):
        for value in part:
            yield from _list_texts(value)
