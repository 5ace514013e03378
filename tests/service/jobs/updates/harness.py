"""One execution on a stand: events go in, moves come out. No database, and time is a number."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from meshfleet.protocol.ids import ModelNumber, Version
from meshfleet.protocol.products import UpdateMethod
from meshfleet.rest import ExecutionState as S
from meshfleet.service.jobs.updates import start
from meshfleet.service.jobs.updates.model import (
    DfuModeSeen,
    ExecutionRecord,
    HeartbeatReceived,
    RequestNotSent,
    RequestUnanswered,
    ResponseReceived,
    TimerDue,
    UpdateContext,
    UpdateEvent,
    UpdateSpec,
)
from meshfleet.service.jobs.updates.state_machine import advance_execution
from meshfleet.service.jobs.updates.states import ACTIVE_STATES

if TYPE_CHECKING:
    from meshfleet.service.jobs.updates.model import Decision, UpdateRequest

MINUTE = 60_000
GATEWAY, DEVICE = 0x02005E000001, 0xC0FFEE000010
MODEL, LEGACY = ModelNumber("0018"), ModelNumber("000F")
IMAGE = {"modelNumber": 0x18, "version": "1.1.0"}
OURS, OTHER = "010100", "010000"
"""Versions as 8001 tells them."""


def build_spec(**values: Any) -> UpdateSpec:
    """An order with these wishes."""
    usual = UpdateSpec(
        job=1,
        model=MODEL,
        version=Version.parse("1.1.0"),
        size=30_000,
        stage=False,
        is_applied=False,
        is_canceling=False,
        heartbeats=2,
        retries=0,
        backoff_base=MINUTE,
        queue_timeout=60 * MINUTE,
        step_timeout=10 * MINUTE,
        total_timeout=None,
    )
    return replace(usual, **values)


def state(word: str, percent: int = 0, error: int = 0, **values: Any) -> dict[str, Any]:
    """What 8120, 8125 and 8130 hold, of our image unless said otherwise."""
    return {"state": word, "percent": percent, "error": error, **IMAGE, **values}


class UpdateHarness:
    """An execution that waits in the queue, until it is dispatched."""

    def __init__(
        self, way: UpdateMethod = UpdateMethod.DOWNLOAD, *, batch: tuple[int, ...] = (), **wishes: Any
    ) -> None:
        self.now = 1_000_000_000
        self.context = UpdateContext(
            spec=build_spec(**wishes),
            gateway=GATEWAY,
            rate=300.0,
            heartbeat_interval=MINUTE,
            status=0,
            beat_at=0,
            batch=batch,
        )
        self.x = ExecutionRecord(
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
        self.move: Decision

    def change_spec(self, **values: Any) -> None:
        """People want something else."""
        self.context = replace(self.context, spec=replace(self.context.spec, **values))

    def dispatch(self, **how: bool) -> UpdateRequest | None:
        """Its turn has come; what is asked."""
        return self._take(start.dispatch_execution(self.x, self.context, self.now, **how))

    def happen(self, event: UpdateEvent, *, after: int = 1000) -> UpdateRequest | None:
        """Something happens, a while after the last; what is asked."""
        self.now += after
        return self._take(advance_execution(self.x, event, self.context, self.now))

    def _take(self, move: Decision) -> UpdateRequest | None:
        self.move = move
        ask = f"request-{self.now}" if move.request is not None else move.execution.ask
        self.x = replace(move.execution, ask=ask)
        return move.request

    def answer(self, status: int = 0, value: Any = None) -> UpdateRequest | None:
        """What it asked is answered."""
        assert self.x.ask is not None
        assert self.x.step is not None
        return self.happen(ResponseReceived(self.x.step, status, value))

    def answer_state(
        self, word: str, percent: int = 0, error: int = 0, **values: Any
    ) -> UpdateRequest | None:
        """It is asked how far it is, and that is the answer."""
        if self.x.ask is None:
            assert self.due() is not None
        return self.answer(0, state(word, percent, error, **values))

    def due(self) -> UpdateRequest | None:
        """Its time comes."""
        return self.happen(TimerDue(), after=max(self.x.due - self.now, 0))

    def is_in(self, state: S) -> bool:
        """Whether it is in this state now."""
        return self.x.state is state

    def happen_due(self) -> UpdateRequest | None:
        """Somebody lets it be looked at now."""
        return self.happen(TimerDue())

    def happen_due_in(self, millis: int) -> UpdateRequest | None:
        """Somebody lets it be looked at in a moment."""
        return self.happen(TimerDue(), after=millis)

    def without_request(self) -> ExecutionRecord:
        """The same, but nobody waits for an answer."""
        return replace(self.x, ask=None)

    def beat(self, status: int = 0) -> UpdateRequest | None:
        return self.happen(HeartbeatReceived(status, self.now + 1), after=MINUTE)

    def in_dfu(self) -> UpdateRequest | None:
        return self.happen(DfuModeSeen(GATEWAY, None, -60))

    def unsent(self) -> UpdateRequest | None:
        assert self.x.step is not None
        return self.happen(RequestNotSent(self.x.step, "the gateway is not connected"))

    def unclear(self) -> UpdateRequest | None:
        assert self.x.step is not None
        return self.happen(RequestUnanswered(self.x.step, "nobody answered"), after=30_000)

    def run_unanswered(self) -> None:
        """Nobody answers anything any more, until it is given up."""
        while self.x.state in ACTIVE_STATES:
            if self.x.ask is None:
                self.due()
            else:
                self.unclear()

    def confirm(self) -> None:
        """From the first heartbeat to the end."""
        for _ in range(self.context.spec.heartbeats):
            if self.beat() is not None:
                self.answer(0, OURS)


def harness_in_state(where: S, way: UpdateMethod = UpdateMethod.DOWNLOAD, **wishes: Any) -> UpdateHarness:
    """An execution that has come so far."""
    stand = UpdateHarness(way, **wishes)
    stand.dispatch()
    if where is S.DISPATCHED:
        return stand
    if way is UpdateMethod.NORDIC_DFU:
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
        stand.answer_state(word, 100)
        assert stand.x.state is reached, stand.x
    assert stand.x.state is where
    return stand
