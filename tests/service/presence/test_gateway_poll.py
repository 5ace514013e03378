"""The poll of the gateways that are connected to the embedded broker."""

from __future__ import annotations

import asyncio
from itertools import count
from typing import TYPE_CHECKING

import pytest

from meshfleet.service.presence.gateway_poll import poll_gateways
from tests.service.ingest.messages import A, B, mac_to_number
from tests.service.presence.presence_harness import PresenceHarness, summarize

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from meshfleet.mqtt.codec.packets import Publish

pytestmark = pytest.mark.anyio


class ConnectionScript:
    """Transport that returns a scripted list of connections per poll, and repeats the last one."""

    def __init__(self, *lists: Mapping[str, int] | None) -> None:
        self._lists = list(lists)
        self.calls = count()
        self.finished = asyncio.Event()

    def connected_gateways(self) -> Mapping[str, int] | None:
        """Return the next scripted connections."""
        next(self.calls)
        if len(self._lists) == 1:
            self.finished.set()
            return self._lists[0]
        return self._lists.pop(0)

    def hears_requests(self, gateway: str) -> bool:  # noqa: ARG002 # every gateway does
        return True

    def connection_id(self, gateway: str) -> int:
        """Return the number of a gateway's connection."""
        return (self._lists[0] or {}).get(gateway, 0)

    last_connection_id = connection_id

    def send(self, messages: Sequence[Publish]) -> None:
        """Ignore messages."""

    async def send_urgent(self, message: Publish) -> None:
        """Ignore a message."""

    @property
    def unavailable_reason(self) -> None:
        """No reason: always available."""

    def subscribe(self, topic_filter: str, callback: Callable[[Publish], None]) -> object:
        """Ignore subscriptions."""


async def poll_to_end(script: ConnectionScript, harness: PresenceHarness) -> list[int]:
    """Poll to the end of the script without pauses, and return the new connections."""
    new_connections: list[int] = []
    task = asyncio.create_task(poll_gateways(script, harness.tracker, new_connections.append, pause=0.0))
    async with asyncio.timeout(30):
        await script.finished.wait()
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    return new_connections


@pytest.mark.rule("rest-77")
async def test_the_last_poll_counts() -> None:
    harness = PresenceHarness()
    await poll_to_end(ConnectionScript({}, {A: 1, B: 2}, {B: 2}), harness)
    assert summarize(harness.collect_changes()) == [(B, True, "connection")]


async def test_every_new_connection_is_reported() -> None:
    harness = PresenceHarness()
    script = ConnectionScript({A: 1}, {A: 1, B: 2}, {A: 3, B: 2}, {A: 3}, {A: 3, B: 2}, {A: 3, B: 2})
    new_connections = await poll_to_end(script, harness)
    assert new_connections == [mac_to_number(A), mac_to_number(B), mac_to_number(A), mac_to_number(B)]


@pytest.mark.rule("rest-78")
async def test_on_an_external_broker_nothing_is_polled() -> None:
    harness = PresenceHarness(external_broker=True)
    script = ConnectionScript(None)
    async with asyncio.timeout(30):
        await poll_gateways(script, harness.tracker, lambda _: None)
    assert next(script.calls) == 1
    assert harness.collect_changes() == []
