"""Ingest with acknowledgements behind it, a clock that the test moves, and all that gateways would hear."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, NamedTuple

from meshfleet.service.acks import store
from meshfleet.service.acks.acks import Acks
from meshfleet.service.acks.checking import check
from meshfleet.service.acks.series import complete_up_to
from tests.eventually import eventually_async
from tests.service.ingest.intake import MINUTE, NOON, SECOND
from tests.service.ingest.messages import A, B, D, number, temperature, when

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from meshfleet.service.acks.series import Key, Series
    from meshfleet.wire.mqtt.packets import Publish
    from tests.service.ingest.intake import Intake

TEMPERATURE: Key = (number(D), 1, 0x8800)
"""The series that most tests are about."""

_LOOKS = 100
"""More than it ever takes until no hole is due."""


class Ack(NamedTuple):
    """What a gateway hears."""

    topic: str
    time: str
    type: int


class Post:
    """The carrier: it keeps what is sent."""

    def __init__(self) -> None:
        self.sent: list[Publish] = []

    def send(self, messages: Sequence[Publish]) -> None:
        """See `Carrier`."""
        self.sent += messages

    def listen(self, wanted: str, heard: Callable[[Publish], None]) -> None:
        """Nobody says anything."""

    def gateways(self) -> None:
        """Nobody knows who is there."""

    def turn(self, gateway: str) -> None:
        """See `gateways`."""

    def last_turn(self, gateway: str) -> None:
        """See `gateways`."""

    async def offer(self, message: Publish) -> None:
        """See `Carrier`."""

    @property
    def muted(self) -> None:
        """See `Carrier`."""


class Ground:
    """Two gateways that take acknowledgements, and a ledger of what they bring."""

    def __init__(self, intake: Intake) -> None:
        self.intake = intake
        self.post = Post()
        self.acks = self._begin()

    def _begin(self, prefix: str = "") -> Acks:
        acks = Acks(self.post, prefix=prefix, now=self.intake.now)
        self.intake.ingest.acking = {number(A), number(B)}
        self.intake.ingest.lead(acks)
        return acks

    async def restart(self, *, after: int = SECOND) -> None:
        """Be killed, and start again after so many milliseconds."""
        self.intake.now += after
        await self.intake.restart()
        self.acks = self._begin()
        self.acks.restore(self.tables())

    async def take(self, *messages: Publish) -> list[Ack]:
        """Let messages come as one batch; gives how they are acknowledged."""
        self.post.sent.clear()
        await self.intake.take(*messages)
        await eventually_async(lambda: not self.acks.is_behind, "the last acknowledgement")
        return [_ack(each) for each in self.post.sent]

    async def tell(self, *places: int, gateway: str = A, device: str = D) -> list[int]:
        """Let samples come that are made a minute apart and counted; gives the types of their acks.

        It is the moment of the newest.
        """
        self.intake.now = max(self.intake.now, at(max(places)))
        messages = [temperature(at(each), gateway=gateway, device=device, seq=each % 256) for each in places]
        return [ack.type for ack in await self.take(*messages)]

    async def look(self) -> None:
        """Let a while pass, and look at all holes that are due."""
        self.intake.now += 11 * SECOND
        for _ in range(_LOOKS):
            before = self.holes
            await check(self.acks, self.intake.store, lambda: self.intake.now)
            if self.holes == before:
                return
        raise AssertionError("it does not end")

    @property
    def series(self) -> Series:
        """The series that most tests are about."""
        return self.acks.series[TEMPERATURE]

    @property
    def holes(self) -> list[tuple[float, float]]:
        """Where something is missing in it, by the places of samples."""
        return [(place(hole.since), place(hole.until)) for hole in self.series.holes or ()]

    @property
    def complete(self) -> float | None:
        """The place of the sample up to which nothing is missing."""
        until = complete_up_to([self.series], self.intake.now)
        return None if until is None else place(until)

    def tables(self) -> dict[Key, Series]:
        """What the database knows."""
        return self.intake.database.read_now(store.ledger)

    def complete_by_tables(self) -> float | None:
        """As `complete`, as clients are told."""
        known = self.intake.database.read_now(store.of_identifier, number(D), 0x8800)
        until = complete_up_to(known, self.intake.now)
        return None if until is None else place(until)

    def close(self) -> None:
        """Let running work end."""
        self.intake.close()


def at(place_of_sample: int) -> int:
    """When a sample was made."""
    return NOON + place_of_sample * MINUTE


def place(time: int) -> float:
    """Which sample was made then."""
    return (time - NOON) / MINUTE


def _ack(message: Publish) -> Ack:
    assert (message.qos, message.retain) == (1, False)
    told = json.loads(message.payload)
    ack = Ack(message.topic, told.pop("time"), told.pop("type"))
    assert told == {}
    return ack


def ack(end: str, time: int, type_: int = 0, *, gateway: str = A, device: str = D) -> Ack:
    """An ack; `end` is the operation and the identifier."""
    return Ack(f"mt/gateway/{gateway}/request/{device}/{end}", when(time), type_)


def rows(ledger: dict[Key, Series]) -> dict[Key, tuple[object, ...]]:
    """What tables have of a ledger."""
    return {
        key: (
            each.time,
            each.seq,
            each.unfilled,
            [(hole.since, hole.until, hole.found_at, hole.lost_at) for hole in each.holes or ()],
        )
        for key, each in ledger.items()
    }


async def flush(ground: Ground) -> None:
    """Write down what has changed; then the tables agree with what is remembered."""
    await ground.intake.ingest.flush()
    assert rows(ground.tables()) == rows(ground.acks.series)
    holes = [hole for series in ground.acks.series.values() for hole in series.holes or ()]
    counted = ground.acks.holed
    assert counted.lost == sum(hole.lost_at is not None for hole in holes)
    assert counted.open == len(holes) - counted.lost
    assert counted.unchecked == sum(not each.is_checked for each in ground.acks.series.values())
