"""Bodies of live events, and the frames of their WebSocket."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from msgspec import UNSET, Meta, UnsetType

from meshfleet.rest.bodies import DeviceIdText, IdentifierText, MacText, RequestBody, ResponseBody, TimeText
from meshfleet.rest.gateways import Gateway
from meshfleet.rest.jobs import Execution
from meshfleet.rest.problems import FieldProblem  # noqa: TC001 # msgspec reads it

STREAM_PATH: Final = "/api/v1/stream"
"""Path of live events as server-sent events (rest-147)."""

LIVE_PATH: Final = "/api/v1/live"
"""Path of live events over a WebSocket (rest-151)."""

LIVE_EVENT_TYPES: Final = ("device", "report", "job", "execution", "gateway", "resync")
"""Types of live events (rest-146)."""

MAX_FILTER_VALUES: Final = 1000
"""Maximum number of values of a filter."""

MAX_PING_CHARACTERS: Final = 64
"""Maximum characters of a `ping`."""


class LiveEvent(ResponseBody, frozen=True, kw_only=True):
    """Live event (rest-146)."""

    id: str
    """Opaque id, after which a subscriber can resume (rest-149)."""
    type: Literal["device", "report", "job", "execution", "gateway", "resync"]
    time: TimeText
    data: Any
    """One of the bodies below, or a `Device` or a `Job`."""


class LiveSample(ResponseBody, frozen=True, kw_only=True):
    """Report with a value, with the fields of a sample (rest-81)."""

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
    """Heartbeat of a device."""

    device: DeviceIdText
    gateway: MacText
    kind: Literal["heartbeat"] = "heartbeat"
    time: TimeText
    status: int


class LiveLink(ResponseBody, frozen=True, kw_only=True):
    """Signal of a device at a parent; `dfu` if the device is in DFU mode."""

    device: DeviceIdText
    gateway: MacText
    kind: Literal["rssi", "dfu"]
    time: TimeText
    parent: MacText
    rssi: int
    unreachable: bool


class LiveGateway(Gateway, frozen=True, kw_only=True):
    """Gateway that changed, and with it the devices behind it."""

    cause: str
    """Cause of the change: `connected`, `disconnected`, `claimed` or `renamed`; there may be more."""
    devices: int
    """Number of devices that changed with the gateway. They have no events of their own."""


class ReleasedGateway(ResponseBody, frozen=True, kw_only=True):
    """Gateway that was released."""

    mac: MacText
    device_id: DeviceIdText
    released: Literal[True] = True


class ForgottenDevice(ResponseBody, frozen=True, kw_only=True):
    """Device that was deleted from the registry."""

    id: DeviceIdText
    forgotten: Literal[True] = True


class DeletedJob(ResponseBody, frozen=True, kw_only=True):
    """Job that was deleted."""

    id: str
    deleted: Literal[True] = True


class LiveExecution(Execution, frozen=True, kw_only=True):
    """Execution that changed, with the id of its job."""

    job_id: str


class Resync(ResponseBody, frozen=True, kw_only=True):
    """Notice that events were missed and cannot be replayed: read the state again (rest-156)."""

    reason: str


class LiveFrame(RequestBody, frozen=True, kw_only=True):
    """Frame that a subscriber sends: exactly one of the first four fields (rest-152, rest-206)."""

    token: str | UnsetType = UNSET
    subscribe: dict[str, list[str]] | UnsetType = UNSET
    unsubscribe: dict[str, list[str]] | UnsetType = UNSET
    ping: Annotated[str, Meta(max_length=MAX_PING_CHARACTERS)] | UnsetType = UNSET
    last_event_id: str | UnsetType = UNSET
    """With `subscribe`: resume after this event."""


class LivePong(ResponseBody, frozen=True, kw_only=True):
    """Reply to a `ping`, which shows that the connection works (rest-206)."""

    pong: str
    """Text of the `ping`."""


class LiveError(ResponseBody, frozen=True, kw_only=True):
    """Error because of which a WebSocket is closed."""

    code: str
    detail: str
    errors: tuple[FieldProblem, ...]


class LiveRefusal(ResponseBody, frozen=True, kw_only=True):
    """Last frame of a WebSocket that is closed because of an error."""

    error: LiveError
