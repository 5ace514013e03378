"""Which gateways are connected is looked at again and again, where a broker of ours knows."""

from __future__ import annotations

import asyncio
from itertools import count
from typing import TYPE_CHECKING

import pytest

from meshfleet.service.presence.roll_call import call_roll
from tests.service.ingest.messages import A, B, number
from tests.service.presence.scene import Scene, brief

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from meshfleet.wire.mqtt.packets import Publish

pytestmark = pytest.mark.anyio


class Roll:
    """A broker that tells at each call who is there; when it has no more to tell, it waits for the end."""

    def __init__(self, *lists: Mapping[str, int] | None) -> None:
        self._lists = list(lists)
        self.calls = count()
        self.ended = asyncio.Event()

    def gateways(self) -> Mapping[str, int] | None:
        """See `Carrier`."""
        next(self.calls)
        if len(self._lists) == 1:
            self.ended.set()
            return self._lists[0]
        return self._lists.pop(0)

    def turn(self, gateway: str) -> int:
        """See `Carrier`."""
        return (self._lists[0] or {}).get(gateway, 0)

    last_turn = turn

    def send(self, messages: Sequence[Publish]) -> None:
        """See `Carrier`."""

    async def offer(self, message: Publish) -> None:
        """See `Carrier`."""

    @property
    def muted(self) -> None:
        """See `Carrier`."""

    def listen(self, wanted: str, heard: Callable[[Publish], None]) -> object:
        """See `Carrier`."""


async def called(roll: Roll, scene: Scene) -> list[int]:
    """Call it to the end, without pauses; who came is given."""
    came: list[int] = []
    task = asyncio.create_task(call_roll(roll, scene.presence, came.append, pause=0.0))
    async with asyncio.timeout(30):
        await roll.ended.wait()
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    return came


@pytest.mark.rule("rest-77")
async def test_the_last_call_counts() -> None:
    scene = Scene()
    await called(Roll({}, {A: 1, B: 2}, {B: 2}), scene)
    assert brief(scene.look()) == [(B, True, "connection")]


async def test_who_connects_anew_has_come_each_time() -> None:
    scene = Scene()
    roll = Roll({A: 1}, {A: 1, B: 2}, {A: 3, B: 2}, {A: 3}, {A: 3, B: 2}, {A: 3, B: 2})
    came = await called(roll, scene)
    assert came == [number(A), number(B), number(A), number(B)]


@pytest.mark.rule("rest-78")
async def test_where_only_another_broker_knows_nobody_is_called() -> None:
    scene = Scene(by_hearing=True)
    roll = Roll(None)
    async with asyncio.timeout(30):
        await call_roll(roll, scene.presence, lambda _: None)
    assert next(roll.calls) == 1
    assert scene.look() == []
