"""JSON bodies of REST responses about update jobs."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Final, Literal

from msgspec import Meta, field

from meshfleet.protocol.products import UpdateMethod  # noqa: TC001 # msgspec reads it
from meshfleet.rest import job_requests  # noqa: TC001 # msgspec reads it
from meshfleet.rest.bodies import DeviceIdText, MacText, ResponseBody, TimeText

JOBS_PATH: Final = "/api/v1/jobs"


class JobState(StrEnum):
    """State of an update job (rest-134)."""

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
    """Outcome of a finished update job (rest-134)."""

    SUCCEEDED = "SUCCEEDED"
    PARTIAL = "PARTIAL"
    FAILED = "FAILED"
    NONE = "NONE"


class StopCause(StrEnum):
    """Reason why an update job was stopped before its end."""

    USER = "USER"
    ABORT_CRITERIA = "ABORT_CRITERIA"
    RELEASE_WITHDRAWN = "RELEASE_WITHDRAWN"
    DEADLINE = "DEADLINE"


class PauseReason(StrEnum):
    """Reason why an update job is paused."""

    USER = "USER"
    ABORT_CRITERIA = "ABORT_CRITERIA"
    GATE = "GATE"
    """A wave has met the conditions of the gate, and the job waits for an operator (`gate.pause`)."""
    GATE_FAILED = "GATE_FAILED"
    """A wave has finished, but too few updates of the wave succeeded."""


class ExecutionState(StrEnum):
    """State of the update of one device in a job."""

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
    """State of a wave of an update job."""

    WAITING = "WAITING"
    RUNNING = "RUNNING"
    SOAKING = "SOAKING"
    """Enough updates of the wave succeeded; no further updates start for `soakMinutes`."""
    PASSED = "PASSED"
    HELD = "HELD"
    """Enough updates of the wave succeeded; the job waits for an operator before the next wave."""
    FAILED = "FAILED"
    SKIPPED = "SKIPPED"


class JobWave(ResponseBody, frozen=True, kw_only=True):
    """Wave of an update job, with the progress of the wave."""

    name: str | None
    state: WaveState
    size: int
    """Number of devices in the wave."""
    succeeded: int
    failed: int
    """Number of devices whose update failed, timed out or was rejected."""
    soaks_until: TimeText | None
    """Time at which the next wave may start; null unless this wave is soaking."""


class Job(ResponseBody, frozen=True, kw_only=True):
    """Update job with its options and progress (rest-131)."""

    id: str
    name: str
    firmware_id: str
    model_number: str
    version: str
    """Version of the firmware that the job installs."""
    targets: job_requests.TargetsView
    stage: bool
    allow_downgrade: bool
    method: UpdateMethod | None
    auto_apply: bool
    dry_run: Literal[False] = False
    start_at: TimeText | None
    deadline: TimeText | None
    waves: tuple[job_requests.WaveView, ...]
    gate: job_requests.GateView
    concurrency: job_requests.ConcurrencyView
    rate: job_requests.RateView | None
    abort: tuple[job_requests.CriterionView, ...]
    retry: job_requests.RetryView
    timeouts: job_requests.TimeoutsView
    health: job_requests.JobHealthView
    on_newer_job: Literal["queue", "supersede", "reject"]
    state: JobState
    outcome: Outcome | None
    stop_cause: StopCause | None
    pause_reason: PauseReason | None
    counts: dict[ExecutionState, int]
    left_out: dict[ExecutionState, int]
    """Number of devices, by state, that were excluded when the job was created; `counts` includes them."""
    progress: Annotated[int, Meta(ge=0, le=100)]
    eta: TimeText | None
    """Estimated end of the job; null if no estimate is possible, for example while no update is running."""
    wave_states: list[JobWave]
    created_by: str
    created_at: TimeText
    started_at: TimeText | None
    applied_at: TimeText | None
    """Time at which the installation of staged images was started."""
    finished_at: TimeText | None
    parent_job_id: str | None


class JobPage(ResponseBody, frozen=True, kw_only=True):
    """Page of update jobs, the newest job first."""

    items: list[Job]
    next_token: str | None


class Execution(ResponseBody, frozen=True, kw_only=True):
    """Update of one device in a job (rest-140)."""

    device_id: DeviceIdText
    state: ExecutionState
    attempt: int
    progress: int
    waiting_for: str | None
    """Sentence that says what the execution is waiting for; null if it is not waiting."""
    reason: str | None
    """Sentence that says why the execution ended, or why it is retried."""
    reason_code: str | None
    method: UpdateMethod | None
    wave: str | None
    gateway: MacText | None
    started_at: TimeText | None
    updated_at: TimeText
    from_version: str | None
    to_version: str


class ExecutionPage(ResponseBody, frozen=True, kw_only=True):
    """Page of the executions of a job, sorted by device."""

    items: list[Execution]
    next_token: str | None


class DeviceUpdate(Execution, frozen=True, kw_only=True):
    """Update of a device in an unfinished job, with id, name and state of the job (rest-211)."""

    job_id: str
    job_name: str
    job_state: JobState


class DeviceUpdatePage(ResponseBody, frozen=True, kw_only=True):
    """Page of the updates of a device in unfinished jobs, the newest job first."""

    items: list[DeviceUpdate]
    next_token: str | None


class ReasonCount(ResponseBody, frozen=True, kw_only=True):
    """Number of executions of a job that ended in the same state for the same reason."""

    state: ExecutionState
    reason_code: str | None
    count: int


class GatewayCounts(ResponseBody, frozen=True, kw_only=True):
    """Number of executions of a job behind one gateway, by state."""

    gateway: MacText | None
    """MAC of the gateway; null for devices whose gateway is unknown."""
    counts: dict[ExecutionState, int]
    """Number of executions by state; states without executions are omitted."""


class JobSummary(ResponseBody, frozen=True, kw_only=True):
    """Numbers of executions of a job by reason and by gateway, all counted at the same time (rest-207)."""

    job: Job
    """Job at the time of this summary; the numbers of the summary add up to the job's `counts`."""
    failures: list[ReasonCount]
    """Numbers of executions that failed, timed out or were rejected; the most frequent reason first."""
    left_out: list[ReasonCount]
    """Numbers of devices that were excluded when the job was created; other fields do not include them."""
    waiting: dict[str, int]
    """Number of queued executions by the value of `waitingFor`."""
    gateways: list[GatewayCounts]
    """At most 100 gateways, those with the most unfinished executions first. The last entry may stand for
    executions without a known gateway."""
    gateway_count: int
    """Number of all gateways with executions of the job."""


class Evidence(ResponseBody, frozen=True, kw_only=True):
    """Report or response that caused a transition of an execution, or arrived too late for one."""

    time: TimeText
    kind: str
    """`response`, `no-response`, `heartbeat` or `dfu`; later versions may add kinds."""
    attempt: int
    content: Any
    """Fields by kind: `response` has `{step, status, value}`, `no-response` `{step, reason?}`, `heartbeat`
    `{status, time}`, and `dfu` `{gateway, parent, rssi}`, where `gateway` and `parent` may be null."""


class Transition(ResponseBody, frozen=True, kw_only=True):
    """Transition of an execution from one state to another."""

    from_: ExecutionState | None = field(name="from")
    """State before the transition; null for the first transition."""
    to: ExecutionState
    time: TimeText
    attempt: int
    actor: str
    cause: str
    evidence: Evidence | None


class ExecutionDetail(Execution, frozen=True, kw_only=True):
    """Execution with its state transitions, and the reports and responses that caused them (rest-141)."""

    transitions: list[Transition]
    evidence: list[Evidence]
    """Reports and responses that caused no transition of the execution by themselves."""
    later: list[Evidence]
    """Reports and responses that arrived after the end of the execution, and changed nothing."""


class Refusal(ResponseBody, frozen=True, kw_only=True):
    """Reason why a job would not update some of its target devices, and the number of these devices."""

    code: str
    reason: str
    count: int
    device_ids: list[DeviceIdText]
    """Examples of devices that would not be updated for this reason."""


class DryRun(ResponseBody, frozen=True, kw_only=True):
    """Result of a dry run: which devices a job would update, and how (rest-122)."""

    targets: int
    eligible: int
    skipped: int
    offline: int
    """Number of eligible devices that are offline now; the job updates them when they are connected again."""
    busy: int
    """Number of eligible devices that are in another unfinished job, and are updated by one job at a time."""
    refusals: list[Refusal]
    methods: dict[str, int]
    waves: list[JobWave]
    device_ids: list[DeviceIdText]
    """Examples of devices that would be updated."""
    estimated_minutes: float
    dry_run: Literal[True] = True
