"""JSON bodies of the REST API: silences of alarms, which are maintenance windows."""

from __future__ import annotations

from collections.abc import Sequence  # msgspec reads it
from enum import StrEnum
from typing import Annotated, Final

from msgspec import Meta, Struct, field

from meshfleet.rest.bodies import DeviceIdText, MacText, RequestBody, ResponseBody, TimeText

SILENCES_PATH: Final = "/api/v1/silences"

MAX_SILENCES: Final = 200
MAX_SCOPE: Final = 1000
"""Maximum number of devices, gateways, labels and rules that a silence names, each."""
MAX_SILENCE_DAYS: Final = 90

SilenceIdText = Annotated[str, Meta(pattern="^silence-[1-9][0-9]*$")]


class Repetition(StrEnum):
    """How often a silence repeats itself, at the same time of day."""

    DAILY = "daily"
    WEEKLY = "weekly"


class SilenceState(StrEnum):
    """State of a silence."""

    ACTIVE = "active"
    PENDING = "pending"
    """The silence begins later, or again."""
    OVER = "over"


class SilenceScope(Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """Alarms that a silence is for: those of the rules, if all members are at one of the places."""

    devices: Annotated[Sequence[DeviceIdText], Meta(max_length=MAX_SCOPE)] = ()
    gateways: Annotated[Sequence[MacText], Meta(max_length=MAX_SCOPE)] = ()
    """Gateways, with all devices behind them."""
    labels: Annotated[Sequence[str], Meta(max_length=MAX_SCOPE)] = ()
    """Labels of a member or of its gateway."""
    rules: Annotated[Sequence[str], Meta(max_length=MAX_SCOPE)] = ()
    """Rules; empty for all. With rules alone, the places of the members do not matter."""


class NewSilence(RequestBody, frozen=True, kw_only=True):
    """Request to create a silence, or to replace it (rest-296)."""

    scope: SilenceScope
    starts_at: str = field(name="from")
    until: str
    """End of the silence; of the first one if it repeats itself."""
    repeat: Repetition | None = None
    repeat_until: str | None = None
    """Time from which it does not begin again; required with `repeat`."""
    time_zone: str = "UTC"
    """Time zone in which repetitions begin at the same time of day, such as `Europe/Zurich`."""
    note: Annotated[str, Meta(max_length=1000)] = ""


class SilenceScopeView(SilenceScope, frozen=True, kw_only=True, forbid_unknown_fields=False):
    """`SilenceScope` in responses; unlike in requests, unknown fields are ignored."""


class Silence(ResponseBody, frozen=True, kw_only=True):
    """Maintenance window in which alarms are not told (rest-296)."""

    id: SilenceIdText
    scope: SilenceScopeView
    starts_at: TimeText = field(name="from")
    until: TimeText
    repeat: Repetition | None
    repeat_until: TimeText | None
    time_zone: str
    note: str
    state: SilenceState
    active_until: TimeText | None
    """End of the present silence; null if it is not active."""
    next_from: TimeText | None
    """Time at which it begins next; null if it does not begin again."""
    alarms: int
    """Number of alarms that it silences now."""
    created_at: TimeText
    created_by: str
    version: int


class SilenceList(ResponseBody, frozen=True, kw_only=True):
    """All silences, by their beginning."""

    items: list[Silence]
