"""The AsyncAPI document: right by the standard, whole, and the same every time."""

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
OTHER = build_asyncapi_document(
    (
        ServerDescription("mqtt-tls", "[2001:db8::1]:8883", "secure-mqtt", "Over TLS."),
        ServerDescription("mqtt-ws", "fleet.example.org:443", "wss", "In WebSockets.", "/mqtt"),
    ),
    "site/7",
)


# --- The standard ---


@pytest.mark.rule("rest-162")
def test_it_is_asyncapi_3_0_by_the_parser_of_the_standard() -> None:
    assert [each["asyncapi"] for each in (DOCUMENT, OTHER)] == ["3.0.0"] * 2
    *faults, faults_of_wrong = validate_documents([DOCUMENT, OTHER, _spoilt(_dangling)])
    assert faults == [[], []]
    assert faults_of_wrong, "the parser finds nothing wrong with anything"


def _without_title(document: dict[str, Any]) -> None:
    del document["info"]["title"]


def _unknown_action(document: dict[str, Any]) -> None:
    document["operations"]["send-read"]["action"] = "whisper"


def _dangling(document: dict[str, Any]) -> None:
    document["operations"]["send-read"]["channel"]["$ref"] = "#/channels/nowhere"


def _foreign_message(document: dict[str, Any]) -> None:
    foreign = "#/channels/report-rssi/messages/rssi"
    document["operations"]["receive-heartbeat"]["messages"] = [{"$ref": foreign}]


def _no_schema(document: dict[str, Any]) -> None:
    document["components"]["schemas"]["Heartbeat"]["type"] = "thing"


def _wrong_binding(document: dict[str, Any]) -> None:
    document["operations"]["receive-rssi"]["bindings"]["mqtt"]["qos"] = 3


def _spoilt(spoil: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    document = deepcopy(DOCUMENT)
    spoil(document)
    return document


@pytest.mark.part("variants")
def test_it_is_so_without_a_server() -> None:
    assert validate_documents([build_asyncapi_document(())]) == [[]]


@pytest.mark.part("variants")
def test_the_parser_refuses_every_document_that_is_wrong() -> None:
    spoils = (_without_title, _unknown_action, _foreign_message, _no_schema, _wrong_binding)
    verdicts = validate_documents([_spoilt(spoil) for spoil in spoils])
    accepted = [spoil.__name__ for spoil, faults in zip(spoils, verdicts, strict=True) if not faults]
    assert accepted == []


def test_every_reference_leads_somewhere_and_every_component_is_used() -> None:
    used = set(re.findall(r'"\$ref": "#/([^"]+)"', json.dumps(DOCUMENT)))
    for reference in used:
        place = DOCUMENT
        for step in reference.split("/"):
            place = place[step]
    components = {
        f"components/{sort}/{name}" for sort, named in DOCUMENT["components"].items() for name in named
    }
    assert components <= used


# --- All of it ---


@pytest.mark.rule("rest-162")
@each_row("kind", list(Kind))
def test_a_kind_of_report_is_received(kind: Kind) -> None:
    operation = DOCUMENT["operations"][f"receive-{kind}"]
    assert operation["action"] == "receive"
    assert "reply" not in operation
    assert operation["messages"] == [{"$ref": f"#/channels/report-{kind}/messages/{kind}"}]


@pytest.mark.rule("rest-162")
@each_row("end", ["", "-to-all"])
@each_row("word", list(Operation))
def test_an_operation_is_sent_and_its_response_is_the_reply(word: Operation, end: str) -> None:
    operation = DOCUMENT["operations"][f"send-{word}{end}"]
    assert operation["action"] == "send"
    assert operation["messages"][0]["$ref"].endswith(f"/messages/{word}-request")
    assert ("reply" in operation) is word.is_answered
    assert (f"response-{word}" in DOCUMENT["channels"]) is word.is_answered
    if word.is_answered:
        channel = {"$ref": f"#/channels/response-{word}"}
        message = {"$ref": f"#/channels/response-{word}/messages/{word}-response"}
        assert operation["reply"] == {"channel": channel, "messages": [message]}
        for name in (f"{word}-request", f"{word}-response"):
            correlation = DOCUMENT["components"]["messages"][name]["correlationId"]["$ref"].rpartition("/")[2]
            found = DOCUMENT["components"]["correlationIds"][correlation]
            assert found["location"] == "$message.payload#/id"


@pytest.mark.rule("rest-162")
def test_the_question_of_a_gateway_for_firmware_is_answered() -> None:
    operation = DOCUMENT["operations"]["receive-firmware-question"]
    assert operation["action"] == "receive"
    assert operation["reply"]["channel"] == {"$ref": "#/channels/firmware-answer"}


@pytest.mark.rule("rest-162")
def test_nothing_else_is_sent_or_received() -> None:
    assert len(DOCUMENT["operations"]) == len(Kind) + 2 * len(Operation) + 1


def test_every_channel_has_a_use() -> None:
    used = set(re.findall(r'"#/channels/([^"/]+)"', json.dumps(DOCUMENT["operations"])))
    assert used == set(DOCUMENT["channels"])


def test_all_goes_with_qos_1_and_is_never_retained() -> None:
    for operation in DOCUMENT["operations"].values():
        assert operation["bindings"]["mqtt"]["qos"] == 1
        assert operation["bindings"]["mqtt"]["retain"] is False


def test_all_is_told_to_people_and_under_a_heading() -> None:
    tags = {tag["name"] for tag in DOCUMENT["info"]["tags"]}
    for sort in (DOCUMENT["channels"], DOCUMENT["operations"], DOCUMENT["components"]["messages"]):
        for each in sort.values():
            assert each["title"]
            assert each["description"]
            assert {tag["name"] for tag in each["tags"]} <= tags
    assert "from the side of the service" in DOCUMENT["info"]["description"]


def test_no_text_names_what_only_readers_of_the_source_know() -> None:
    for text in _texts(DOCUMENT):
        assert not re.search(r"\b(report|request|response|ack|firmware|topic|rest|id)-\d", text)
        assert "None" not in text


# --- The same every time ---


@pytest.mark.rule("rest-162")
def test_another_process_makes_the_same_bytes(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    program = [sys.executable, "-c", "from meshfleet.cli import main; main(['asyncapi'])"]
    made = subprocess.run(program, capture_output=True, check=True).stdout
    main(["asyncapi"], standalone_mode=False)
    assert capfdbinary.readouterr().out == made
    assert json.loads(made) == DOCUMENT


def test_it_is_made_once() -> None:
    assert build_asyncapi_document()["channels"] is build_asyncapi_document(())["channels"]


def _texts(part: object) -> Iterator[str]:
    if isinstance(part, dict):
        for key, value in part.items():
            yield from [value] if key in {"description", "summary", "title"} else _texts(value)
    elif isinstance(part, list):
        for value in part:
            yield from _texts(value)
