"""Commands of Home Assistant: the values that they may write, and the log of those that are refused."""

from __future__ import annotations

from asyncio import Event
from typing import TYPE_CHECKING, Any

import pytest

from meshfleet.mqtt.codec.packets import Publish
from meshfleet.protocol.identifiers import BUILTIN_CATALOGUE
from meshfleet.protocol.ids import Mac, mac_from_int
from meshfleet.service.homeassistant.commands import CommandHandler, InvalidCommand, parse_value
from tests.row_tables import each_row
from tests.service.homeassistant.fleets import COLD_ROOM, SHOWN, TOPICS, build_published_plan

if TYPE_CHECKING:
    from meshfleet.service.homeassistant.publisher import PublisherSources


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


@pytest.mark.anyio
@pytest.mark.rule("homeassistant-9")
async def test_commands_to_unknown_devices_do_not_fill_the_log(
    sources: PublisherSources, caplog: pytest.LogCaptureFixture
) -> None:
    plan = build_published_plan()
    handler = CommandHandler(plan, SHOWN, TOPICS, sources.requests, sources.now, wake=Event().set)
    for number in range(1000):
        handler.handle(Publish(TOPICS.command(Mac(mac_from_int(number)), "alarm"), b"OFF", 1))
    assert 1 <= len(caplog.records) <= 5
    handler.handle(Publish(TOPICS.command(COLD_ROOM.mac, "temperature"), b"1", 1))
    assert COLD_ROOM.mac in caplog.records[-1].getMessage()
