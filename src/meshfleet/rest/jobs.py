"""Bodies about update jobs, as they are answered."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Final, Literal

from msgspec import Meta, field

from meshfleet.protocol.products import UpdateMethod  # noqa: TC001 # msgspec reads it
from meshfleet.rest.bodies import DeviceIdText, MacText, ResponseBody, TimeText
from meshfleet.rest.job_requests import (  # noqa: TC001 # msgspec reads them
    ConcurrencyView,
    CriterionView,
    GateView,
    JobHealthView,
    RateView,
    RetryView,
    TargetsView,
    TimeoutsView,
    WaveView,
)

JOBS_PATH: Final = "/api/v1/jobs"


class JobState(StrEnum):
    """Where a job is (rest-134)."""

    CREATED = "CREATED"
    PENDING_APPROVAL = "PENDING_APPROVAL"
    SCHEDULED = "SCHEDULED"
    IN_PROGRESS = "IN_PROGRESS"
    PAUSED = "PAUSED"
    CANCELING = "CANCELING"
    CANCELED = "CANCELED"
    COMPLETED = "COMPLETED"
    DELETING = "DELETING"


class Outcome(StrEnum):
    """How a job went (rest-134)."""

    SUCCEEDED = "SUCCEEDED"
    PARTIAL = "PARTIAL"
    FAILED = "FAILED"
    NONE = "NONE"


class StopCause(StrEnum):
    """Why a job was stopped."""

    USER = "USER"
    ABORT_CRITERIA = "ABORT_CRITERIA"
    RELEASE_WITHDRAWN = "RELEASE_WITHDRAWN"
    DEADLINE = "DEADLINE"


class PauseReason(StrEnum):
    """Why a job is paused."""

    USER = "USER"
    ABORT_CRITERIA = "ABORT_CRITERIA"
    GATE = "GATE"
    """A wave passed, and somebody wants to look before the next (`gate.pause`)."""
    GATE_FAILED = "GATE_FAILED"
    """A wave is over, and too few of it succeeded."""


class ExecutionState(StrEnum):
    """Where a device is in a job."""

    QUEUED = "QUEUED"
    DISPATCHED = "DISPATCHED"
    TRANSFERRING = "TRANSFERRING"
    VERIFYING = "VERIFYING"
    STAGED = "STAGED"
    APPLYING = "APPLYING"
    CONFIRMING = "CONFIRMING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    TIMED_OUT = "TIMED_OUT"
    REJECTED = "REJECTED"
    SKIPPED = "SKIPPED"
    CANCELED = "CANCELED"
    REMOVED = "REMOVED"
    SUPERSEDED = "SUPERSEDED"


class WaveState(StrEnum):
    """Where a wave is."""

    WAITING = "WAITING"
    RUNNING = "RUNNING"
    SOAKING = "SOAKING"
    """Enough of it succeeded, and for a while nothing more is begun."""
    PASSED = "PASSED"
    HELD = "HELD"
    """Passed, and somebody is to look before the next."""
    FAILED = "FAILED"
    SKIPPED = "SKIPPED"


class JobWave(ResponseBody, frozen=True, kw_only=True):
    """A wave as it fell."""

    name: str | None
    state: WaveState
    size: int
    """How many devices are in it."""
    succeeded: int
    failed: int
    """How many failed, timed out or were rejected."""
    soaks_until: TimeText | None
    """When the next wave may begin, while this one soaks."""


class Job(ResponseBody, frozen=True, kw_only=True):
    """A job: what it was made of, and how it goes (rest-131)."""

    id: str
    name: str
    firmware_id: str
    model_number: str
    version: str
    """Those of the firmware."""
    targets: TargetsView
    stage: bool
    allow_downgrade: bool
    method: UpdateMethod | None
    auto_apply: bool
    dry_run: Literal[False] = False
    start_at: TimeText | None
    deadline: TimeText | None
    waves: tuple[WaveView, ...]
    gate: GateView
    concurrency: ConcurrencyView
    rate: RateView | None
    abort: tuple[CriterionView, ...]
    retry: RetryView
    timeouts: TimeoutsView
    health: JobHealthView
    on_newer_job: Literal["queue", "supersede", "reject"]
    state: JobState
    outcome: Outcome | None
    stop_cause: StopCause | None
    pause_reason: PauseReason | None
    counts: dict[ExecutionState, int]
    left_out: dict[ExecutionState, int]
    """Those of `counts` that were left out from the beginning, of states in which any are."""
    progress: Annotated[int, Meta(ge=0, le=100)]
    eta: TimeText | None
    """When it is likely to be over; null: nobody can tell, as while nothing is under way."""
    wave_states: list[JobWave]
    created_by: str
    created_at: TimeText
    started_at: TimeText | None
    applied_at: TimeText | None
    """When somebody let devices start what they had staged."""
    finished_at: TimeText | None
    parent_job_id: str | None


class JobPage(ResponseBody, frozen=True, kw_only=True):
    """Jobs, the newest first."""

    items: list[Job]
    next_token: str | None


class Execution(ResponseBody, frozen=True, kw_only=True):
    """The part of one device in a job (rest-140)."""

    device_id: DeviceIdText
    state: ExecutionState
    attempt: int
    progress: int
    waiting_for: str | None
    """A sentence: what it waits for, if it waits."""
    reason: str | None
    """A sentence: why it ended as it did, or why it is tried again."""
    reason_code: str | None
    method: UpdateMethod | None
    wave: str | None
    gateway: MacText | None
    started_at: TimeText | None
    updated_at: TimeText
    from_version: str | None
    to_version: str


class ExecutionPage(ResponseBody, frozen=True, kw_only=True):
    """Executions of a job, by device."""

    items: list[Execution]
    next_token: str | None


class DeviceUpdate(Execution, frozen=True, kw_only=True):
    """The part of one device in a job that is not over, seen from the device (rest-211)."""

    job_id: str
    job_name: str
    job_state: JobState


class DeviceUpdatePage(ResponseBody, frozen=True, kw_only=True):
    """What jobs that are not over do with a device, the newest job first."""

    items: list[DeviceUpdate]
    next_token: str | None


class ReasonCount(ResponseBody, frozen=True, kw_only=True):
    """How many executions ended like this."""

    state: ExecutionState
    reason_code: str | None
    count: int


class GatewayCounts(ResponseBody, frozen=True, kw_only=True):
    """How the executions behind one gateway stand."""

    gateway: MacText | None
    """Null: nobody knows through which they go."""
    counts: dict[ExecutionState, int]
    """Of states in which any are."""


class JobSummary(ResponseBody, frozen=True, kw_only=True):
    """The executions of a job, counted in several ways at one moment (rest-207)."""

    job: Job
    """The job at the same moment: its `counts` are those that are divided here."""
    failures: list[ReasonCount]
    """Who failed, timed out or was rejected: what happens most comes first."""
    left_out: list[ReasonCount]
    """Who was left out from the beginning, and is counted nowhere else here."""
    waiting: dict[str, int]
    """What queued ones wait for, in the words of `waitingFor`."""
    gateways: list[GatewayCounts]
    """At most 100: those with most to do come first. The last may be null: nobody knows which."""
    gateway_count: int
    """How many gateways have a part in it."""


class Evidence(ResponseBody, frozen=True, kw_only=True):
    """A report or response that moved an execution, or came too late to do so."""

    time: TimeText
    kind: str
    """`response`, `no-response`, `heartbeat` or `dfu`; there may be more."""
    attempt: int
    content: Any
    """What was said, by kind: `{step, status, value}`, `{step, reason?}`, `{status, time}` or
    `{gateway, parent, rssi}`; gateway and parent are MACs, or null; `time` is written as all times are."""


class Transition(ResponseBody, frozen=True, kw_only=True):
    """A step of an execution."""

    from_: ExecutionState | None = field(name="from")
    """Null: it began."""
    to: ExecutionState
    time: TimeText
    attempt: int
    actor: str
    cause: str
    evidence: Evidence | None


class ExecutionDetail(Execution, frozen=True, kw_only=True):
    """An execution with all that happened (rest-141)."""

    transitions: list[Transition]
    evidence: list[Evidence]
    """What was seen on the way, and was no step by itself."""
    later: list[Evidence]
    """What came when it was over, and changed nothing."""


class Refusal(ResponseBody, frozen=True, kw_only=True):
    """Why devices would not be updated."""

    code: str
    reason: str
    count: int
    device_ids: list[DeviceIdText]
    """Some of them."""


class DryRun(ResponseBody, frozen=True, kw_only=True):
    """What a job would do (rest-122)."""

    targets: int
    eligible: int
    skipped: int
    offline: int
    """How many of the eligible ones are offline now: they wait until they are back."""
    busy: int
    """How many of the eligible ones another job is not over with: one job updates a device at a time."""
    refusals: list[Refusal]
    methods: dict[str, int]
    waves: list[JobWave]
    device_ids: list[DeviceIdText]
    """Some of those that would be updated."""
    estimated_minutes: float
    dry_run: Literal[True] = True
