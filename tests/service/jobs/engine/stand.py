"""One execution on a stand: events go in, moves come out. No database, and time is a number."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from meshfleet.service.jobs.update import starting
from meshfleet.service.jobs.update.events import Answered, Beat, Due, Event, InDfu, Unclear, Unsent
from meshfleet.service.jobs.update.machine import advance
from meshfleet.service.jobs.update.model import Execution, Order, Scene
from meshfleet.service.jobs.update.states import ACTIVE
from meshfleet.wire.ids import ModelNumber, Version
from meshfleet.wire.products import Way
from meshfleet.wire.rest import ExecutionState as S

if TYPE_CHECKING:
    from meshfleet.service.jobs.update.model import Ask, Move

MINUTE = 60_000
GATEWAY, DEVICE = 0x02005E000001, 0xC0FFEE000010
MODEL, LEGACY = ModelNumber("0018"), ModelNumber("000F")
IMAGE = {"modelNumber": 0x18, "version": "1.1.0"}
OURS, OTHER = "010100", "010000"
"""Versions as 8001 tells them."""


def order(**values: Any) -> Order:
    """An order with these wishes."""
    usual = Order(
        job=1,
        model=MODEL,
        version=Version.parse("1.1.0"),
        size=30_000,
        stage=False,
        is_applied=False,
        is_canceling=False,
        heartbeats=2,
        retries=0,
        backoff=MINUTE,
        queue=60 * MINUTE,
        step=10 * MINUTE,
        total=None,
    )
    return replace(usual, **values)


def state(word: str, percent: int = 0, error: int = 0, **values: Any) -> dict[str, Any]:
    """What 8120, 8125 and 8130 hold, of our image unless said otherwise."""
    return {"state": word, "percent": percent, "error": error, **IMAGE, **values}


class Stand:
    """An execution that waits in the queue, until it is dispatched."""

    def __init__(self, way: Way = Way.DOWNLOAD, *, batch: tuple[int, ...] = (), **wishes: Any) -> None:
        self.now = 1_000_000_000
        self.scene = Scene(
            order=order(**wishes),
            gateway=GATEWAY,
            rate=300.0,
            rhythm=MINUTE,
            status=0,
            beat_at=0,
            batch=batch,
        )
        self.x = Execution(
            job=1,
            device=DEVICE,
            state=S.QUEUED,
            wave=0,
            due=0,
            attempt=1,
            method=way,
            gateway=GATEWAY,
            from_version="1.0.0",
            batch="batch" if batch else None,
            updated_at=0,
        )
        self.move: Move

    def wish(self, **values: Any) -> None:
        """People want something else."""
        self.scene = replace(self.scene, order=replace(self.scene.order, **values))

    def dispatch(self, **how: bool) -> Ask | None:
        """Its turn has come; what is asked."""
        return self._take(starting.dispatch(self.x, self.scene, self.now, **how))

    def happen(self, event: Event, *, after: int = 1000) -> Ask | None:
        """Something happens, a while after the last; what is asked."""
        self.now += after
        return self._take(advance(self.x, event, self.scene, self.now))

    def _take(self, move: Move) -> Ask | None:
        self.move = move
        ask = f"request-{self.now}" if move.ask is not None else move.execution.ask
        self.x = replace(move.execution, ask=ask)
        return move.ask

    def answer(self, status: int = 0, value: Any = None) -> Ask | None:
        """What it asked is answered."""
        assert self.x.ask is not None
        assert self.x.step is not None
        return self.happen(Answered(self.x.step, status, value))

    def told(self, word: str, percent: int = 0, error: int = 0, **values: Any) -> Ask | None:
        """It is asked how far it is, and that is the answer."""
        if self.x.ask is None:
            assert self.due() is not None
        return self.answer(0, state(word, percent, error, **values))

    def due(self) -> Ask | None:
        """Its time comes."""
        return self.happen(Due(), after=max(self.x.due - self.now, 0))

    def is_in(self, state: S) -> bool:
        """Whether it is in this state now."""
        return self.x.state is state

    def happen_due(self) -> Ask | None:
        """Somebody lets it be looked at now."""
        return self.happen(Due())

    def happen_due_in(self, millis: int) -> Ask | None:
        """Somebody lets it be looked at in a moment."""
        return self.happen(Due(), after=millis)

    def lost(self) -> Execution:
        """The same, but nobody waits for an answer."""
        return replace(self.x, ask=None)

    def beat(self, status: int = 0) -> Ask | None:
        return self.happen(Beat(status, self.now + 1), after=MINUTE)

    def in_dfu(self) -> Ask | None:
        return self.happen(InDfu(GATEWAY, None, -60))

    def unsent(self) -> Ask | None:
        assert self.x.step is not None
        return self.happen(Unsent(self.x.step, "the gateway is not connected"))

    def unclear(self) -> Ask | None:
        assert self.x.step is not None
        return self.happen(Unclear(self.x.step, "nobody answered"), after=30_000)

    def hear_nothing(self) -> None:
        """Nobody answers anything any more, until it is given up."""
        while self.x.state in ACTIVE:
            if self.x.ask is None:
                self.due()
            else:
                self.unclear()

    def confirm(self) -> None:
        """From the first heartbeat to the end."""
        for _ in range(self.scene.order.heartbeats):
            if self.beat() is not None:
                self.answer(0, OURS)


def brought_to(where: S, way: Way = Way.DOWNLOAD, **wishes: Any) -> Stand:
    """An execution that has come so far."""
    stand = Stand(way, **wishes)
    stand.dispatch()
    if where is S.DISPATCHED:
        return stand
    if way is Way.NORDIC_DFU:
        stand.answer()
        stand.in_dfu()
    stand.answer()
    for word, reached in (
        ("verifying", S.VERIFYING),
        ("staged", S.STAGED),
        ("applying", S.APPLYING),
        ("done", S.CONFIRMING),
    ):
        if stand.x.state is where:
            return stand
        if word == "staged" and where is not S.STAGED:
            continue
        stand.told(word, 100)
        assert stand.x.state is reached, stand.x
    assert stand.x.state is where
    return stand
