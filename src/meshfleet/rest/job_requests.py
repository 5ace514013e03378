"""Orders: what an update job is made of."""

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
    """A part of an order. Answers show all of it, with what holds unless set."""


class TargetFilter(JobRequestPart, frozen=True, kw_only=True, rename="pascal"):
    """The filters of the list of devices, by their names there (rest-34)."""

    label: str | list[str] | UnsetType = UNSET
    connected: bool | UnsetType = UNSET
    model_number: str | UnsetType = UNSET
    firmware_version: str | UnsetType = UNSET
    hardware_version: str | UnsetType = UNSET
    friendly_name: str | UnsetType = UNSET
    gateway: str | UnsetType = UNSET
    ids: list[str] | UnsetType = UNSET


class Targets(JobRequestPart, frozen=True, kw_only=True):
    """Which devices: all that any of these parts means (rest-116)."""

    device_ids: list[str] | UnsetType = UNSET
    labels: list[str] | UnsetType = UNSET
    filter: TargetFilter | UnsetType = UNSET
    all: bool = False


class Wave(JobRequestPart, frozen=True, kw_only=True):
    """A part of the targets; one of `count` and `percent` is given (rest-123)."""

    name: Annotated[str, Meta(max_length=100)] | None = None
    count: Count | None = None
    percent: Annotated[float, Meta(gt=0, le=100)] | None = None


class Gate(JobRequestPart, frozen=True, kw_only=True):
    """What a wave must reach before the next begins (rest-125)."""

    success_percent: Percent = 0
    soak_minutes: Minutes = 0
    pause: bool = False


class Concurrency(JobRequestPart, frozen=True, kw_only=True):
    """How many devices are updated at the same time; null is no limit (rest-127)."""

    per_job: Count | None = None
    per_gateway: Count | None = 1


class Rate(JobRequestPart, frozen=True, kw_only=True):
    """How many updates begin in a minute; null is no limit (rest-126)."""

    per_minute: Annotated[int, Meta(ge=1, le=60_000)] | None = None


class Criterion(JobRequestPart, frozen=True, kw_only=True):
    """When to stop, and how."""

    type: Literal["FAILED", "REJECTED", "TIMED_OUT", "ALL"] = "ALL"
    min_executed: Annotated[int, Meta(ge=1, le=1_000_000)] = 1
    percent: Annotated[float, Meta(gt=0, le=100)]
    action: Literal["PAUSE", "CANCEL"] = "PAUSE"


class Retry(JobRequestPart, frozen=True, kw_only=True):
    """How often an update is tried again by itself (rest-128)."""

    max: Annotated[int, Meta(ge=0, le=10)] = 2
    backoff_seconds: Annotated[float, Meta(ge=0, le=21_600)] = 60


class Timeouts(JobRequestPart, frozen=True, kw_only=True):
    """How long parts of an update may take; null for `totalMinutes`: as long as the image seems to need."""

    queue_minutes: PositiveMinutes = 10_080
    step_minutes: PositiveMinutes = 10
    total_minutes: Annotated[float, Meta(ge=1, le=10_080)] | None = None


class JobHealth(JobRequestPart, frozen=True, kw_only=True):
    """How many good heartbeats prove that a device is well; 0: its version alone does (rest-130)."""

    heartbeats: Annotated[int, Meta(ge=0, le=100)] = 3


class NewJob(RequestBody, frozen=True, kw_only=True):
    """An order to update devices (rest-115)."""

    name: Annotated[str, Meta(min_length=1, max_length=200)]
    firmware_id: str
    targets: Targets
    stage: bool = False
    """Let devices keep the image until the job is applied."""
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
    """The same as it is answered: clients ignore what they do not know, in every part of an answer."""


class TargetsView(Targets, frozen=True, kw_only=True, forbid_unknown_fields=False):
    """The same as it is answered; of more than a hundred `deviceIds` the first hundred."""

    filter: TargetFilterView | UnsetType = UNSET


class WaveView(Wave, frozen=True, kw_only=True, forbid_unknown_fields=False):
    """The same as it is answered."""


class GateView(Gate, frozen=True, kw_only=True, forbid_unknown_fields=False):
    """The same as it is answered."""


class ConcurrencyView(Concurrency, frozen=True, kw_only=True, forbid_unknown_fields=False):
    """The same as it is answered."""


class RateView(Rate, frozen=True, kw_only=True, forbid_unknown_fields=False):
    """The same as it is answered."""


class CriterionView(Criterion, frozen=True, kw_only=True, forbid_unknown_fields=False):
    """The same as it is answered."""


class RetryView(Retry, frozen=True, kw_only=True, forbid_unknown_fields=False):
    """The same as it is answered."""


class TimeoutsView(Timeouts, frozen=True, kw_only=True, forbid_unknown_fields=False):
    """The same as it is answered."""


class JobHealthView(JobHealth, frozen=True, kw_only=True, forbid_unknown_fields=False):
    """The same as it is answered."""


class StoredJobRequest(NewJob, frozen=True, kw_only=True, forbid_unknown_fields=False):
    """An order as it was written down, perhaps by a newer program: what we do not know is passed over."""

    targets: TargetsView
    waves: tuple[WaveView, ...] = ()
    gate: GateView = GateView()
    concurrency: ConcurrencyView = ConcurrencyView()
    rate: RateView | None = None
    abort: tuple[CriterionView, ...] = ()
    retry: RetryView = RetryView()
    timeouts: TimeoutsView = TimeoutsView()
    health: JobHealthView = JobHealthView()
