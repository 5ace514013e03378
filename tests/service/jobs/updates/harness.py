"""Test harness of the update state machine: events go in, decisions come out, without a database or clock."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from meshfleet.protocol.ids import ModelNumber, Version
from meshfleet.protocol.products import UpdateMethod
from meshfleet.rest.jobs import ExecutionState
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
    from meshfleet.service.jobs.updates.model import Decision, UpdateRequest, UpdateStep

MINUTE = 60_000
GATEWAY, DEVICE = 0x02005E000001, 0xC0FFEE000010
MODEL, LEGACY = ModelNumber("0018"), ModelNumber("000F")
IMAGE = {"modelNumber": 0x18, "version": "1.1.0"}
OURS, OTHER = "010100", "010000"
"""Target version and another one, as values of 8001."""


def build_spec(**values: Any) -> UpdateSpec:
    """Build the parameters of a job; `values` override the defaults."""
    defaults = UpdateSpec(
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
    return replace(defaults, **values)


def build_state_value(keyword: str, percent: int = 0, error: int = 0, **values: Any) -> dict[str, Any]:
    """Build a value of 8120, 8125 or 8130, by default about the image of the job."""
    return {"state": keyword, "percent": percent, "error": error, **IMAGE, **values}


def find_step(request: UpdateRequest | None) -> UpdateStep | None:
    """Return the step of a request; None if there is no request."""
    return None if request is None else request.step


class UpdateHarness:
    """Queued execution with a simulated time. Methods apply events and return the request that follows."""

    def __init__(
        self, method: UpdateMethod = UpdateMethod.DOWNLOAD, *, batch: tuple[int, ...] = (), **options: Any
    ) -> None:
        self.now = 1_000_000_000
        self.context = UpdateContext(
            spec=build_spec(**options),
            gateway=GATEWAY,
            rate=300.0,
            heartbeat_interval=MINUTE,
            status=0,
            beat_at=0,
            batch=batch,
        )
        self.execution = ExecutionRecord(
            job=1,
            device=DEVICE,
            state=ExecutionState.QUEUED,
            wave=0,
            due=0,
            attempt=1,
            method=method,
            gateway=GATEWAY,
            from_version="1.0.0",
            batch="batch" if batch else None,
            updated_at=0,
        )
        self.decision: Decision

    def change_spec(self, **values: Any) -> None:
        """Change parameters of the job."""
        self.context = replace(self.context, spec=replace(self.context.spec, **values))

    def dispatch(self, **flags: bool) -> UpdateRequest | None:
        """Dispatch the execution."""
        return self._apply_decision(start.dispatch_execution(self.execution, self.context, self.now, **flags))

    def apply_event(self, event: UpdateEvent, *, after: int = 1000) -> UpdateRequest | None:
        """Apply an event, `after` milliseconds after the last one."""
        self.now += after
        return self._apply_decision(advance_execution(self.execution, event, self.context, self.now))

    def _apply_decision(self, decision: Decision) -> UpdateRequest | None:
        self.decision = decision
        request_id = (
            f"request-{self.now}" if decision.request is not None else decision.execution.pending_request
        )
        self.execution = replace(decision.execution, pending_request=request_id)
        return decision.request

    def respond(self, status: int = 0, value: Any = None) -> UpdateRequest | None:
        """Respond to the pending request."""
        assert self.execution.pending_request is not None
        assert self.execution.step is not None
        return self.apply_event(ResponseReceived(self.execution.step, status, value))

    def respond_state(
        self, keyword: str, percent: int = 0, error: int = 0, **values: Any
    ) -> UpdateRequest | None:
        """Respond to a state query, after waiting for it if none is pending."""
        if self.execution.pending_request is None:
            assert self.advance_to_due() is not None
        return self.respond(0, build_state_value(keyword, percent, error, **values))

    def advance_to_due(self) -> UpdateRequest | None:
        """Advance the time until the execution is due."""
        return self.apply_event(TimerDue(), after=max(self.execution.due - self.now, 0))

    def is_in(self, state: ExecutionState) -> bool:
        """Return whether the execution is in a state."""
        return self.execution.state is state

    def apply_timer(self) -> UpdateRequest | None:
        """Make the execution due now."""
        return self.apply_event(TimerDue())

    def apply_timer_after(self, millis: int) -> UpdateRequest | None:
        """Make the execution due after some milliseconds."""
        return self.apply_event(TimerDue(), after=millis)

    def without_request(self) -> ExecutionRecord:
        """Return the execution without its pending request."""
        return replace(self.execution, pending_request=None)

    def send_heartbeat(self, status: int = 0) -> UpdateRequest | None:
        return self.apply_event(HeartbeatReceived(status, self.now + 1), after=MINUTE)

    def enter_dfu_mode(self) -> UpdateRequest | None:
        return self.apply_event(DfuModeSeen(GATEWAY, None, -60))

    def fail_sending(self) -> UpdateRequest | None:
        assert self.execution.step is not None
        return self.apply_event(RequestNotSent(self.execution.step, "the gateway is not connected"))

    def miss_response(self) -> UpdateRequest | None:
        assert self.execution.step is not None
        return self.apply_event(RequestUnanswered(self.execution.step, "no response"), after=30_000)

    def run_unanswered(self) -> None:
        """Leave all requests unanswered until the execution ends."""
        while self.execution.state in ACTIVE_STATES:
            if self.execution.pending_request is None:
                self.advance_to_due()
            else:
                self.miss_response()

    def confirm(self) -> None:
        """Send heartbeats and respond to version queries until the confirmation is complete."""
        for _ in range(self.context.spec.heartbeats):
            if self.send_heartbeat() is not None:
                self.respond(0, OURS)


def harness_in_state(
    target: ExecutionState, method: UpdateMethod = UpdateMethod.DOWNLOAD, **options: Any
) -> UpdateHarness:
    """Return a harness whose execution has reached a state."""
    harness = UpdateHarness(method, **options)
    harness.dispatch()
    if target is ExecutionState.DISPATCHED:
        return harness
    if method is UpdateMethod.NORDIC_DFU:
        harness.respond()
        harness.enter_dfu_mode()
    harness.respond()
    for keyword, next_state in (
        ("verifying", ExecutionState.VERIFYING),
        ("staged", ExecutionState.STAGED),
        ("applying", ExecutionState.APPLYING),
        ("done", ExecutionState.CONFIRMING),
    ):
        if harness.execution.state is target:
            return harness
        if keyword == "staged" and target is not ExecutionState.STAGED:
            continue
        harness.respond_state(keyword, 100)
        assert harness.execution.state is next_state, harness.execution
    assert harness.execution.state is target
    return harness
