"""Request bodies of update jobs."""

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
    """Part of a job request. Responses show all its fields, with their defaults."""


class TargetFilter(JobRequestPart, frozen=True, kw_only=True, rename="pascal"):
    """Filters of the device list, with the same names (rest-34)."""

    label: str | list[str] | UnsetType = UNSET
    connected: bool | UnsetType = UNSET
    model_number: str | UnsetType = UNSET
    firmware_version: str | UnsetType = UNSET
    hardware_version: str | UnsetType = UNSET
    friendly_name: str | UnsetType = UNSET
    gateway: str | UnsetType = UNSET
    ids: list[str] | UnsetType = UNSET


class Targets(JobRequestPart, frozen=True, kw_only=True):
    """Target devices: those that any of these parts selects (rest-116)."""

    device_ids: list[str] | UnsetType = UNSET
    labels: list[str] | UnsetType = UNSET
    filter: TargetFilter | UnsetType = UNSET
    all: bool = False


class Wave(JobRequestPart, frozen=True, kw_only=True):
    """Wave of the targets; either `count` or `percent` is given (rest-123)."""

    name: Annotated[str, Meta(max_length=100)] | None = None
    count: Count | None = None
    percent: Annotated[float, Meta(gt=0, le=100)] | None = None


class Gate(JobRequestPart, frozen=True, kw_only=True):
    """Conditions that a wave must meet before the next one starts (rest-125)."""

    success_percent: Percent = 0
    soak_minutes: Minutes = 0
    pause: bool = False


class Concurrency(JobRequestPart, frozen=True, kw_only=True):
    """Maximum number of devices that are updated at a time; null means no limit (rest-127)."""

    per_job: Count | None = None
    per_gateway: Count | None = 1


class Rate(JobRequestPart, frozen=True, kw_only=True):
    """Maximum number of updates that start per minute; null means no limit (rest-126)."""

    per_minute: Annotated[int, Meta(ge=1, le=60_000)] | None = None


class Criterion(JobRequestPart, frozen=True, kw_only=True):
    """Abort criterion: share of failures at which the job is paused or canceled."""

    type: Literal["FAILED", "REJECTED", "TIMED_OUT", "ALL"] = "ALL"
    min_executed: Annotated[int, Meta(ge=1, le=1_000_000)] = 1
    percent: Annotated[float, Meta(gt=0, le=100)]
    action: Literal["PAUSE", "CANCEL"] = "PAUSE"


class Retry(JobRequestPart, frozen=True, kw_only=True):
    """Automatic retries per device (rest-128)."""

    max: Annotated[int, Meta(ge=0, le=10)] = 2
    backoff_seconds: Annotated[float, Meta(ge=0, le=21_600)] = 60


class Timeouts(JobRequestPart, frozen=True, kw_only=True):
    """Timeouts of an update. If `totalMinutes` is null, it follows from the size of the image."""

    queue_minutes: PositiveMinutes = 10_080
    step_minutes: PositiveMinutes = 10
    total_minutes: Annotated[float, Meta(ge=1, le=10_080)] | None = None


class JobHealth(JobRequestPart, frozen=True, kw_only=True):
    """Good heartbeats that prove a successful update; with 0 the version alone does (rest-130)."""

    heartbeats: Annotated[int, Meta(ge=0, le=100)] = 3


class NewJob(RequestBody, frozen=True, kw_only=True):
    """Update job to create (rest-115)."""

    name: Annotated[str, Meta(min_length=1, max_length=200)]
    firmware_id: str
    targets: Targets
    stage: bool = False
    """Transfer the image now, and install it when the job is applied."""
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
    """`TargetFilter` in responses, where clients ignore fields that they do not know."""


class TargetsView(Targets, frozen=True, kw_only=True, forbid_unknown_fields=False):
    """`Targets` in responses. If there are more than a hundred `deviceIds`, the first hundred."""

    filter: TargetFilterView | UnsetType = UNSET


class WaveView(Wave, frozen=True, kw_only=True, forbid_unknown_fields=False):
    """`Wave` in responses."""


class GateView(Gate, frozen=True, kw_only=True, forbid_unknown_fields=False):
    """`Gate` in responses."""


class ConcurrencyView(Concurrency, frozen=True, kw_only=True, forbid_unknown_fields=False):
    """`Concurrency` in responses."""


class RateView(Rate, frozen=True, kw_only=True, forbid_unknown_fields=False):
    """`Rate` in responses."""


class CriterionView(Criterion, frozen=True, kw_only=True, forbid_unknown_fields=False):
    """`Criterion` in responses."""


class RetryView(Retry, frozen=True, kw_only=True, forbid_unknown_fields=False):
    """`Retry` in responses."""


class TimeoutsView(Timeouts, frozen=True, kw_only=True, forbid_unknown_fields=False):
    """`Timeouts` in responses."""


class JobHealthView(JobHealth, frozen=True, kw_only=True, forbid_unknown_fields=False):
    """`JobHealth` in responses."""


class StoredJobRequest(NewJob, frozen=True, kw_only=True, forbid_unknown_fields=False):
    """Job request as stored in the database.

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
