"""JSON bodies of REST requests that create update jobs."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from meshfleet.protocol.products import UpdateMethod  # noqa: TC001 # msgspec reads it
from meshfleet.rest.bodies import RequestBody

MAX_WAVES: Final = 50
MAX_ABORT_CRITERIA: Final = 10

Percent = Annotated[float, Meta(ge=0, le=100)]
Count = Annotated[int, Meta(ge=1, le=1_000_000)]
Minutes = Annotated[float, Meta(ge=0, le=525_600)]
PositiveMinutes = Annotated[float, Meta(gt=0, le=525_600)]


class JobRequestPart(Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """Base class of the parts of `NewJob`. Responses contain all fields of a part, including defaults."""


class TargetFilter(JobRequestPart, frozen=True, kw_only=True, rename="pascal"):
    """Filters that select target devices; they have the names of the filters of the device list (rest-34)."""

    label: str | list[str] | UnsetType = UNSET
    connected: bool | UnsetType = UNSET
    model_number: str | UnsetType = UNSET
    firmware_version: str | UnsetType = UNSET
    hardware_version: str | UnsetType = UNSET
    friendly_name: str | UnsetType = UNSET
    gateway: str | UnsetType = UNSET
    ids: list[str] | UnsetType = UNSET


class Targets(JobRequestPart, frozen=True, kw_only=True):
    """Target devices of a job: all devices that at least one of the fields selects (rest-116)."""

    device_ids: list[str] | UnsetType = UNSET
    labels: list[str] | UnsetType = UNSET
    filter: TargetFilter | UnsetType = UNSET
    all: bool = False


class Wave(JobRequestPart, frozen=True, kw_only=True):
    """Group of target devices that are updated together; its size is `count` or `percent` (rest-123)."""

    name: Annotated[str, Meta(max_length=100)] | None = None
    count: Count | None = None
    percent: Annotated[float, Meta(gt=0, le=100)] | None = None


class Gate(JobRequestPart, frozen=True, kw_only=True):
    """Conditions that a wave must meet before the next wave starts (rest-125)."""

    success_percent: Percent = 0
    soak_minutes: Minutes = 0
    pause: bool = False


class Concurrency(JobRequestPart, frozen=True, kw_only=True):
    """Maximum number of devices that a job updates at the same time; null means no limit (rest-127)."""

    per_job: Count | None = None
    per_gateway: Count | None = 1


class Rate(JobRequestPart, frozen=True, kw_only=True):
    """Maximum number of updates that a job starts per minute; null means no limit (rest-126)."""

    per_minute: Annotated[int, Meta(ge=1, le=60_000)] | None = None


class Criterion(JobRequestPart, frozen=True, kw_only=True):
    """Abort criterion: percentage of failed updates at which a job is paused or canceled."""

    type: Literal["FAILED", "REJECTED", "TIMED_OUT", "ALL"] = "ALL"
    min_executed: Annotated[int, Meta(ge=1, le=1_000_000)] = 1
    percent: Annotated[float, Meta(gt=0, le=100)]
    action: Literal["PAUSE", "CANCEL"] = "PAUSE"


class Retry(JobRequestPart, frozen=True, kw_only=True):
    """Automatic retries of the update of a device (rest-128)."""

    max: Annotated[int, Meta(ge=0, le=10)] = 2
    backoff_seconds: Annotated[float, Meta(ge=0, le=21_600)] = 60


class Timeouts(JobRequestPart, frozen=True, kw_only=True):
    """Timeouts of the update of a device. If `totalMinutes` is null, it depends on the size of the image."""

    queue_minutes: PositiveMinutes = 10_080
    step_minutes: PositiveMinutes = 10
    total_minutes: Annotated[float, Meta(ge=1, le=10_080)] | None = None


class JobHealth(JobRequestPart, frozen=True, kw_only=True):
    """Number of good heartbeats that confirm an update; 0: only the version is checked (rest-130).

    A heartbeat is good if its status is 0, missing, or the same as before the update.
    """

    heartbeats: Annotated[int, Meta(ge=0, le=100)] = 3


class NewJob(RequestBody, frozen=True, kw_only=True):
    """Request to create an update job, or with `dryRun` to show what the job would do (rest-115)."""

    name: Annotated[str, Meta(min_length=1, max_length=200)]
    firmware_id: str
    targets: Targets
    stage: bool = False
    """Whether devices install the transferred image only when the job is applied."""
    allow_downgrade: bool = False
    method: UpdateMethod | None = None
    auto_apply: bool = True
    dry_run: bool = False
    start_at: str | None = None
    deadline: str | None = None
    waves: Annotated[tuple[Wave, ...], Meta(max_length=MAX_WAVES)] = ()
    gate: Gate = Gate()
    concurrency: Concurrency = Concurrency()
    rate: Rate | None = None
    abort: Annotated[tuple[Criterion, ...], Meta(max_length=MAX_ABORT_CRITERIA)] = ()
    retry: Retry = Retry()
    timeouts: Timeouts = Timeouts()
    health: JobHealth = JobHealth()
    on_newer_job: Literal["queue", "supersede", "reject"] = "queue"


class TargetFilterView(TargetFilter, frozen=True, kw_only=True, rename="pascal", forbid_unknown_fields=False):
    """`TargetFilter` in responses; unlike in requests, unknown fields are ignored."""


class TargetsView(Targets, frozen=True, kw_only=True, forbid_unknown_fields=False):
    """`Targets` in responses, where `deviceIds` contains only the first 100 devices."""

    filter: TargetFilterView | UnsetType = UNSET


class WaveView(Wave, frozen=True, kw_only=True, forbid_unknown_fields=False):
    """`Wave` in responses; unlike in requests, unknown fields are ignored."""


class GateView(Gate, frozen=True, kw_only=True, forbid_unknown_fields=False):
    """`Gate` in responses; unlike in requests, unknown fields are ignored."""


class ConcurrencyView(Concurrency, frozen=True, kw_only=True, forbid_unknown_fields=False):
    """`Concurrency` in responses; unlike in requests, unknown fields are ignored."""


class RateView(Rate, frozen=True, kw_only=True, forbid_unknown_fields=False):
    """`Rate` in responses; unlike in requests, unknown fields are ignored."""


class CriterionView(Criterion, frozen=True, kw_only=True, forbid_unknown_fields=False):
    """`Criterion` in responses; unlike in requests, unknown fields are ignored."""


class RetryView(Retry, frozen=True, kw_only=True, forbid_unknown_fields=False):
    """`Retry` in responses; unlike in requests, unknown fields are ignored."""


class TimeoutsView(Timeouts, frozen=True, kw_only=True, forbid_unknown_fields=False):
    """`Timeouts` in responses; unlike in requests, unknown fields are ignored."""


class JobHealthView(JobHealth, frozen=True, kw_only=True, forbid_unknown_fields=False):
    """`JobHealth` in responses; unlike in requests, unknown fields are ignored."""


class StoredJobRequest(NewJob, frozen=True, kw_only=True, forbid_unknown_fields=False):
    """Request to create a job, as stored in the database.

    Unknown fields, which a newer version may have stored, are ignored.
    """

    targets: TargetsView
    waves: tuple[WaveView, ...] = ()
    gate: GateView = GateView()
    concurrency: ConcurrencyView = ConcurrencyView()
    rate: RateView | None = None
    abort: tuple[CriterionView, ...] = ()
    retry: RetryView = RetryView()
    timeouts: TimeoutsView = TimeoutsView()
    health: JobHealthView = JobHealthView()
