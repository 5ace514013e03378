"""Text output of responses and reports."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import click
import pytest
from msgspec import structs

from meshfleet.cli.commands.watch import print_report, to_live_report
from meshfleet.cli.device_requests import print_response
from meshfleet.cli.value_format import format_value
from meshfleet.client import Report
from meshfleet.protocol import reports
from meshfleet.protocol.codes import Kind
from meshfleet.protocol.ids import Identifier, Mac
from tests.row_tables import each_row

GATEWAY, DEVICE = Mac("02005e000001"), Mac("ca5bda1a0004")
TIME = "2026-11-15T10:07:20.585Z"


# --- Responses ---


def print_and_read(capsys: pytest.CaptureFixture[str], **response: Any) -> str:
    print_response({"status": 0, "gateway": GATEWAY, **response}, DEVICE, "x = 1", as_json=False)
    subject, line = capsys.readouterr().out.splitlines()
    assert subject == "x = 1"
    return line


@each_row(
    ("origin", "responder"),
    [
        ({"origin": 0}, "the device itself"),
        ({"origin": 1, "extenderId": "CA5B"}, "the device through extender CA5B"),
        ({"origin": 16, "extenderId": "CA5B"}, "extender CA5B instead of the device"),
        ({"origin": 32}, "the gateway instead of the device"),
        ({}, "the device, or the gateway instead of it"),
    ],
)
def test_a_response_names_its_responder(
    capsys: pytest.CaptureFixture[str], origin: dict[str, Any], responder: str
) -> None:
    assert print_and_read(capsys, **origin) == f"answered by {responder}, through gateway {GATEWAY}"


@each_row(
    ("reason", "why"),
    [
        ("asked", ", as requested"),
        ("strongest", ", which receives the device best (-61.5 dBm)"),
        ("last-heard", ", which sent the last report of the device"),
        ("next-best", ", because the last attempt through a better gateway failed"),
        ("a future reason", ""),
    ],
)
def test_a_response_explains_the_choice_of_the_gateway(
    capsys: pytest.CaptureFixture[str], reason: str, why: str
) -> None:
    candidates = [{"gateway": "02005e000002", "rssi": -90.0}, {"gateway": GATEWAY, "rssi": -61.5}]
    line = print_and_read(
        capsys, origin=0, responseTime=12.5, choice={"reason": reason, "candidates": candidates}
    )
    assert line == f"answered by the device itself in 12.5 ms, through gateway {GATEWAY}{why}"


@each_row(("status", "text"), [(9, "timeout (status 9)"), (77, "status 77"), (-1, "status -1")])
def test_a_status_is_shown_with_its_name(status: int, text: str) -> None:
    with pytest.raises(click.ClickException) as refused:
        print_response({"status": status, "origin": 32, "gateway": GATEWAY}, DEVICE, "", as_json=False)
    assert refused.value.message.startswith(f"{text}; answered by the gateway instead of the device")


def test_responses_cannot_control_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    assert "\x1b" not in print_and_read(capsys, origin=1, extenderId="\x1b[2J")
    assert "\x1b" not in format_value("some-name", {"a": "\x1b[2J"}) + format_value("some-name", "\x1b")
    assert "\x1b" not in format_value("8100", "\x1b")


# --- Reports ---


def build_report(kind: Kind, identifier: str | None, payload: str) -> Report:
    body = reports.decode_report(kind, f'{{"time":"{TIME}",{payload}}}'.encode())
    named = None if identifier is None else Identifier(identifier)
    return Report(
        gateway=GATEWAY, device=DEVICE, kind=kind, identifier=named, body=body, received=datetime.now(UTC)
    )


SEQ = '"seq":7'


@each_row(
    ("kind", "identifier", "payload", "expected", "line"),
    [
        (
            Kind.MEASUREMENT,
            "8800",
            f'{SEQ},"value":"1234"',
            {"identifier": "8800", "name": "temperature", "value": 46.6, "raw": "1234", "seq": 7},
            "measurement        temperature  46.6 °C",
        ),
        (
            Kind.MEASUREMENT_DECODED,
            "temperature",
            f'{SEQ},"value":46.6,"ext":{{"rest":"01"}}',
            {"identifier": "8800", "name": "temperature", "value": 46.6, "raw": None, "ext": {"rest": "01"}},
            'measurement        temperature  46.6 °C, rest "01"',
        ),
        (
            Kind.PROPERTY,
            "f001",
            '"value":"00ff"',
            {"identifier": "f001", "name": None, "value": None, "raw": "00ff", "seq": None},
            "property           f001  raw 00ff",
        ),
        (
            Kind.PROPERTY_DECODED,
            "not-in-catalogue",
            '"value":{"a":1}',
            {"identifier": None, "name": "not-in-catalogue", "value": {"a": 1}, "raw": None},
            'property           not-in-catalogue  {"a":1}',
        ),
        (
            Kind.MEASUREMENT_ERROR,
            "8800",
            f'{SEQ},"error":9,"errorExt":3',
            {"identifier": "8800", "name": "temperature", "value": None, "error": 9, "error_ext": 3},
            "measurement-error  temperature  error: timeout (status 9)",
        ),
        (
            Kind.EVENT,
            "8113",
            SEQ,
            {"identifier": "8113", "name": "watchdog-reset-event", "value": None, "raw": None},
            "event              watchdog-reset-event",
        ),
        (Kind.HEARTBEAT, None, f'{SEQ},"status":0', {"status": 0}, "heartbeat          fine"),
        (Kind.HEARTBEAT, None, f'{SEQ},"status":2', {"status": 2}, "heartbeat          status 2"),
        (
            Kind.RSSI,
            None,
            '"parent":"ca5bda1a0010","rssi":-61,"unreachable":true',
            {"parent": "ca5bda1a0010", "rssi": -61, "unreachable": True},
            "rssi               -61 dBm at ca5bda1a0010, unreachable",
        ),
        (
            Kind.DFU,
            None,
            '"parent":"ca5bda1a0010","rssi":-61',
            {"kind": "dfu", "rssi": -61, "unreachable": False},
            "dfu                -61 dBm at ca5bda1a0010",
        ),
    ],
)
def test_a_report_of_a_gateway_is_shown_like_one_of_the_service(  # noqa: PLR0913, PLR0917 # one for each column
    capsys: pytest.CaptureFixture[str],
    kind: Kind,
    identifier: str | None,
    payload: str,
    expected: dict[str, Any],
    line: str,
) -> None:
    live = to_live_report(build_report(kind, identifier, payload))
    assert structs.asdict(live).items() >= expected.items()
    print_report(live, as_json=False)
    assert capsys.readouterr().out == f"{TIME}  bmac-{DEVICE}  {line}\n"
