"""Values that commands of Home Assistant may write."""

from __future__ import annotations

from typing import Any

import pytest

from meshfleet.protocol.identifiers import BUILTIN_CATALOGUE
from meshfleet.service.homeassistant.commands import InvalidCommand, parse_value
from tests.row_tables import each_row


@pytest.mark.rule("homeassistant-9")
@each_row(
    ("name", "payload", "value"),
    [
        ("alarm", b"OFF", False),
        ("alarm-2", b"OFF", False),
        ("priority", b"ON", True),
        ("priority", b"OFF", False),
        ("tx-power", b"-8", -8),
        ("tx-power", b"4.0", 4),
        ("long-button-press-timeout", b"700", 700),
        ("inactive-to-sleep-delay", b"65535", 65535),
        ("soft-reset", b"PRESS", None),
    ],
)
def test_a_command_writes_what_its_entity_allows(name: str, payload: bytes, value: Any) -> None:
    assert parse_value(BUILTIN_CATALOGUE[name], payload) == value


@pytest.mark.rule("homeassistant-9")
@each_row(
    ("name", "payload"),
    [
        ("alarm", b"ON"),
        ("alarm", b""),
        ("priority", b"on"),
        ("priority", b"\xff"),
        ("tx-power", b"9"),
        ("tx-power", b"nan"),
        ("tx-power", b"inf"),
        ("tx-power", b"1.5"),
        ("tx-power", b"1" * 65),
        ("long-button-press-timeout", b"750"),
        ("long-button-press-timeout", b"0"),
        ("soft-reset", b"ON"),
        ("temperature", b"1"),
        ("motion", b"ON"),
        ("device-mode", b"dfu"),
        ("factory-reset", b"PRESS"),
        ("watchdog-reset-event", b"PRESS"),
        ("whitelist-key", b"1"),
    ],
)
def test_anything_else_is_refused(name: str, payload: bytes) -> None:
    with pytest.raises(InvalidCommand):
        parse_value(BUILTIN_CATALOGUE[name], payload)
