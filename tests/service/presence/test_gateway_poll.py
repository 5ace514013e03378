"""Which gateways are connected is looked at again and again, where a broker of ours knows."""

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
    """A broker that tells at each call who is there; when it has no more to tell, it waits for the end."""

    def __init__(self, *lists: Mapping[str, int] | None) -> None:
        self._lists = list(lists)
        self.calls = count()
        self.ended = asyncio.Event()

    def connected_gateways(self) -> Mapping[str, int] | None:
        """See `Carrier`."""
        next(self.calls)
        if len(self._lists) == 1:
            self.ended.set()
            return self._lists[0]
        return self._lists.pop(0)

    def connection_number(self, gateway: str) -> int:
        """See `Carrier`."""
        return (self._lists[0] or {}).get(gateway, 0)

    last_connection_number = connection_number

    def send(self, messages: Sequence[Publish]) -> None:
        """See `Carrier`."""

    async def send_urgent(self, message: Publish) -> None:
        """See `Carrier`."""

    @property
    def unavailable_reason(self) -> None:
        """See `Carrier`."""

    def subscribe(self, topic_filter: str, callback: Callable[[Publish], None]) -> object:
        """See `Carrier`."""


async def called(roll: ConnectionScript, scene: PresenceHarness) -> list[int]:
    """Call it to the end, without pauses; who came is given."""
    came: list[int] = []
    task = asyncio.create_task(poll_gateways(roll, scene.tracker, came.append, pause=0.0))
    async with asyncio.timeout(30):
        await roll.ended.wait()
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    return came


@pytest.mark.rule("rest-77")
async def test_the_last_call_counts() -> None:
    scene = PresenceHarness()
    await called(ConnectionScript({}, {A: 1, B: 2}, {B: 2}), scene)
    assert summarize(scene.collect_changes()) == [(B, True, "connection")]


async def test_who_connects_anew_has_come_each_time() -> None:
    scene = PresenceHarness()
    roll = ConnectionScript({A: 1}, {A: 1, B: 2}, {A: 3, B: 2}, {A: 3}, {A: 3, B: 2}, {A: 3, B: 2})
    came = await called(roll, scene)
    assert came == [mac_to_number(A), mac_to_number(B), mac_to_number(A), mac_to_number(B)]


@pytest.mark.rule("rest-78")
async def test_where_only_another_broker_knows_nobody_is_called() -> None:
    scene = PresenceHarness(external_broker=True)
    roll = ConnectionScript(None)
    async with asyncio.timeout(30):
        await poll_gateways(roll, scene.tracker, lambda _: None)
    assert next(roll.calls) == 1
    assert scene.collect_changes() == []
