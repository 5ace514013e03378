"""Live events, and the frames of those who listen over a WebSocket."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from msgspec import UNSET, Meta, UnsetType

from meshfleet.rest.bodies import DeviceIdText, IdentifierText, MacText, RequestBody, ResponseBody, TimeText
from meshfleet.rest.gateways import Gateway
from meshfleet.rest.jobs import Execution
from meshfleet.rest.problems import FieldProblem  # noqa: TC001 # msgspec reads it

STREAM_PATH: Final = "/api/v1/stream"
"""Live events as server-sent events (rest-147)."""

LIVE_PATH: Final = "/api/v1/live"
"""The same over a WebSocket (rest-151)."""

LIVE_EVENT_TYPES: Final = ("device", "report", "job", "execution", "gateway", "resync")
"""The types of live events (rest-146)."""

MAX_FILTER_VALUES: Final = 1000
"""How many values a filter may have."""

MAX_PING_CHARACTERS: Final = 64
"""Characters of a `ping`."""


class LiveEvent(ResponseBody, frozen=True, kw_only=True):
    """Something that happened a moment ago (rest-146)."""

    id: str
    """Opaque; behind it a listener goes on (rest-149)."""
    type: Literal["device", "report", "job", "execution", "gateway", "resync"]
    time: TimeText
    data: Any
    """One of the bodies below, or a `Device` or a `Job`."""


class LiveSample(ResponseBody, frozen=True, kw_only=True):
    """A report with a value, in the words of a sample (rest-81)."""

    device: DeviceIdText
    gateway: MacText
    kind: Literal["property", "measurement", "measurement-error", "event"]
    identifier: IdentifierText | None
    name: str | None
    time: TimeText
    seq: int | None
    value: Any
    raw: Annotated[str, Meta(pattern="^(?:[0-9a-f]{2})*$")] | None
    ext: dict[str, Any] | None
    error: int | None
    error_ext: int | None
    clock: Literal["future", "past"] | None
    corrected_time: TimeText | UnsetType = UNSET


class LiveHeartbeat(ResponseBody, frozen=True, kw_only=True):
    """A heartbeat."""

    device: DeviceIdText
    gateway: MacText
    kind: Literal["heartbeat"] = "heartbeat"
    time: TimeText
    status: int


class LiveLink(ResponseBody, frozen=True, kw_only=True):
    """How well a parent hears a device; `dfu` when that is in DFU mode."""

    device: DeviceIdText
    gateway: MacText
    kind: Literal["rssi", "dfu"]
    time: TimeText
    parent: MacText
    rssi: int
    unreachable: bool


class LiveGateway(Gateway, frozen=True, kw_only=True):
    """A gateway that changed, and with it all devices behind it."""

    cause: str
    """Why: `connected`, `disconnected`, `claimed` or `renamed`, and more in time."""
    devices: int
    """How many devices changed with it, and are told by this event alone."""


class ReleasedGateway(ResponseBody, frozen=True, kw_only=True):
    """A gateway that is none of ours any more."""

    mac: MacText
    device_id: DeviceIdText
    released: Literal[True] = True


class ForgottenDevice(ResponseBody, frozen=True, kw_only=True):
    """A device that is not in the registry any more."""

    id: DeviceIdText
    forgotten: Literal[True] = True


class DeletedJob(ResponseBody, frozen=True, kw_only=True):
    """A job that was deleted."""

    id: str
    deleted: Literal[True] = True


class LiveExecution(Execution, frozen=True, kw_only=True):
    """An execution that changed, and the job that it is part of."""

    job_id: str


class Resync(ResponseBody, frozen=True, kw_only=True):
    """Something was missed and cannot be told again: read anew what you show (rest-156)."""

    reason: str


class LiveFrame(RequestBody, frozen=True, kw_only=True):
    """What a listener says over a WebSocket: one of the first four at a time (rest-152, rest-206)."""

    token: str | UnsetType = UNSET
    subscribe: dict[str, list[str]] | UnsetType = UNSET
    unsubscribe: dict[str, list[str]] | UnsetType = UNSET
    ping: Annotated[str, Meta(max_length=MAX_PING_CHARACTERS)] | UnsetType = UNSET
    last_event_id: str | UnsetType = UNSET
    """With `subscribe`: go on behind this event."""


class LivePong(ResponseBody, frozen=True, kw_only=True):
    """The answer to a `ping`: the connection lives (rest-206)."""

    pong: str
    """What was asked with."""


class LiveError(ResponseBody, frozen=True, kw_only=True):
    """Why a WebSocket is about to be closed."""

    code: str
    detail: str
    errors: tuple[FieldProblem, ...]


class LiveRefusal(ResponseBody, frozen=True, kw_only=True):
    """The last frame of a WebSocket that did not end well."""

    error: LiveError
