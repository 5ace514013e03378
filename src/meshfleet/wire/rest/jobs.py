"""Bodies about update jobs."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Final, Literal

from msgspec import UNSET, Meta, Struct, UnsetType, field

from meshfleet.wire.products import Way  # noqa: TC001 # msgspec reads it
from meshfleet.wire.rest.bodies import Ask, Body, DeviceIdText, MacText, TimeText

JOBS: Final = "/api/v1/jobs"

MAX_WAVES: Final = 50
MAX_CRITERIA: Final = 10

Percent = Annotated[float, Meta(ge=0, le=100)]
Count = Annotated[int, Meta(ge=1, le=1_000_000)]
Minutes = Annotated[float, Meta(ge=0, le=525_600)]
PositiveMinutes = Annotated[float, Meta(gt=0, le=525_600)]


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


class Part(Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """A part of an order. Answers show all of it, with what holds unless set."""


class TargetFilter(Part, frozen=True, kw_only=True, rename="pascal"):
    """The filters of the list of devices, by their names there (rest-34)."""

    label: str | list[str] | UnsetType = UNSET
    connected: bool | UnsetType = UNSET
    model_number: str | UnsetType = UNSET
    firmware_version: str | UnsetType = UNSET
    hardware_version: str | UnsetType = UNSET
    friendly_name: str | UnsetType = UNSET
    gateway: str | UnsetType = UNSET
    ids: list[str] | UnsetType = UNSET


class Targets(Part, frozen=True, kw_only=True):
    """Which devices: all that any of these parts means (rest-116)."""

    device_ids: list[str] | UnsetType = UNSET
    labels: list[str] | UnsetType = UNSET
    filter: TargetFilter | UnsetType = UNSET
    all: bool = False


class Wave(Part, frozen=True, kw_only=True):
    """A part of the targets; one of `count` and `percent` is given (rest-123)."""

    name: Annotated[str, Meta(max_length=100)] | None = None
    count: Count | None = None
    percent: Annotated[float, Meta(gt=0, le=100)] | None = None


class Gate(Part, frozen=True, kw_only=True):
    """What a wave must reach before the next begins (rest-125)."""

    success_percent: Percent = 0
    soak_minutes: Minutes = 0
    pause: bool = False


class Concurrency(Part, frozen=True, kw_only=True):
    """How many devices are updated at the same time; null is no limit (rest-127)."""

    per_job: Count | None = None
    per_gateway: Count | None = 1


class Rate(Part, frozen=True, kw_only=True):
    """How many updates begin in a minute; null is no limit (rest-126)."""

    per_minute: Annotated[int, Meta(ge=1, le=60_000)] | None = None


class Criterion(Part, frozen=True, kw_only=True):
    """When to stop, and how."""

    type: Literal["FAILED", "REJECTED", "TIMED_OUT", "ALL"] = "ALL"
    min_executed: Annotated[int, Meta(ge=1, le=1_000_000)] = 1
    percent: Annotated[float, Meta(gt=0, le=100)]
    action: Literal["PAUSE", "CANCEL"] = "PAUSE"


class Retry(Part, frozen=True, kw_only=True):
    """How often an update is tried again by itself (rest-128)."""

    max: Annotated[int, Meta(ge=0, le=10)] = 0
    backoff_seconds: Annotated[float, Meta(ge=0, le=21_600)] = 60


class Timeouts(Part, frozen=True, kw_only=True):
    """How long parts of an update may take; null for `totalMinutes`: as long as the image seems to need."""

    queue_minutes: PositiveMinutes = 10_080
    step_minutes: PositiveMinutes = 10
    total_minutes: Annotated[float, Meta(ge=1, le=10_080)] | None = None


class JobHealth(Part, frozen=True, kw_only=True):
    """How many good heartbeats prove that a device is well; 0: its version alone does (rest-130)."""

    heartbeats: Annotated[int, Meta(ge=0, le=100)] = 3


class NewJob(Ask, frozen=True, kw_only=True):
    """An order to update devices (rest-115)."""

    name: Annotated[str, Meta(min_length=1, max_length=200)]
    firmware_id: str
    targets: Targets
    stage: bool = False
    """Let devices keep the image until the job is applied."""
    allow_downgrade: bool = False
    method: Way | None = None
    auto_apply: bool = True
    dry_run: bool = False
    start_at: str | None = None
    deadline: str | None = None
    waves: Annotated[tuple[Wave, ...], Meta(max_length=MAX_WAVES)] = ()
    gate: Gate = Gate()
    concurrency: Concurrency = Concurrency()
    rate: Rate | None = None
    abort: Annotated[tuple[Criterion, ...], Meta(max_length=MAX_CRITERIA)] = ()
    retry: Retry = Retry()
    timeouts: Timeouts = Timeouts()
    health: JobHealth = JobHealth()
    on_newer_job: Literal["queue", "supersede", "reject"] = "queue"


class ToldFilter(TargetFilter, frozen=True, kw_only=True, rename="pascal", forbid_unknown_fields=False):
    """The same as it is answered: clients ignore what they do not know, in every part of an answer."""


class ToldTargets(Targets, frozen=True, kw_only=True, forbid_unknown_fields=False):
    """The same as it is answered; of more than a hundred `deviceIds` the first hundred."""

    filter: ToldFilter | UnsetType = UNSET


class ToldWave(Wave, frozen=True, kw_only=True, forbid_unknown_fields=False):
    """The same as it is answered."""


class ToldGate(Gate, frozen=True, kw_only=True, forbid_unknown_fields=False):
    """The same as it is answered."""


class ToldConcurrency(Concurrency, frozen=True, kw_only=True, forbid_unknown_fields=False):
    """The same as it is answered."""


class ToldRate(Rate, frozen=True, kw_only=True, forbid_unknown_fields=False):
    """The same as it is answered."""


class ToldCriterion(Criterion, frozen=True, kw_only=True, forbid_unknown_fields=False):
    """The same as it is answered."""


class ToldRetry(Retry, frozen=True, kw_only=True, forbid_unknown_fields=False):
    """The same as it is answered."""


class ToldTimeouts(Timeouts, frozen=True, kw_only=True, forbid_unknown_fields=False):
    """The same as it is answered."""


class ToldHealth(JobHealth, frozen=True, kw_only=True, forbid_unknown_fields=False):
    """The same as it is answered."""


class KeptJob(NewJob, frozen=True, kw_only=True, forbid_unknown_fields=False):
    """An order as it was written down, perhaps by a newer program: what we do not know is passed over."""

    targets: ToldTargets
    waves: tuple[ToldWave, ...] = ()
    gate: ToldGate = ToldGate()
    concurrency: ToldConcurrency = ToldConcurrency()
    rate: ToldRate | None = None
    abort: tuple[ToldCriterion, ...] = ()
    retry: ToldRetry = ToldRetry()
    timeouts: ToldTimeouts = ToldTimeouts()
    health: ToldHealth = ToldHealth()


class JobWave(Body, frozen=True, kw_only=True):
    """A wave as it fell."""

    name: str | None
    state: WaveState
    size: int
    """How many devices are in it."""
    succeeded: int


class Job(Body, frozen=True, kw_only=True):
    """A job: what it was made of, and how it goes (rest-131)."""

    id: str
    name: str
    firmware_id: str
    model_number: str
    version: str
    """Those of the firmware."""
    targets: ToldTargets
    stage: bool
    allow_downgrade: bool
    method: Way | None
    auto_apply: bool
    dry_run: Literal[False] = False
    start_at: TimeText | None
    deadline: TimeText | None
    waves: tuple[ToldWave, ...]
    gate: ToldGate
    concurrency: ToldConcurrency
    rate: ToldRate | None
    abort: tuple[ToldCriterion, ...]
    retry: ToldRetry
    timeouts: ToldTimeouts
    health: ToldHealth
    on_newer_job: Literal["queue", "supersede", "reject"]
    state: JobState
    outcome: Outcome | None
    stop_cause: StopCause | None
    pause_reason: PauseReason | None
    counts: dict[ExecutionState, int]
    progress: Annotated[int, Meta(ge=0, le=100)]
    eta: TimeText | None
    """When it is likely to be over; null: nobody can tell."""
    wave_states: list[JobWave]
    created_by: str
    created_at: TimeText
    started_at: TimeText | None
    finished_at: TimeText | None
    parent_job_id: str | None


class JobPage(Body, frozen=True, kw_only=True):
    """Jobs, the newest first."""

    items: list[Job]
    next_token: str | None


class Execution(Body, frozen=True, kw_only=True):
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
    method: Way | None
    wave: str | None
    gateway: MacText | None
    started_at: TimeText | None
    updated_at: TimeText
    from_version: str | None
    to_version: str


class ExecutionPage(Body, frozen=True, kw_only=True):
    """Executions of a job, by device."""

    items: list[Execution]
    next_token: str | None


class Evidence(Body, frozen=True, kw_only=True):
    """A report or response that moved an execution, or came too late to do so."""

    time: TimeText
    kind: str
    attempt: int
    content: Any


class Transition(Body, frozen=True, kw_only=True):
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


class Refusal(Body, frozen=True, kw_only=True):
    """Why devices would not be updated."""

    code: str
    reason: str
    count: int
    device_ids: list[DeviceIdText]
    """Some of them."""


class DryRun(Body, frozen=True, kw_only=True):
    """What a job would do (rest-122)."""

    targets: int
    eligible: int
    skipped: int
    refusals: list[Refusal]
    methods: dict[str, int]
    waves: list[JobWave]
    device_ids: list[DeviceIdText]
    """Some of those that would be updated."""
    estimated_minutes: float
    dry_run: Literal[True] = True
