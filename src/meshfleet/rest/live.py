"""JSON bodies of live events, and the frames of the WebSocket of live events."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from msgspec import UNSET, Meta, UnsetType

from meshfleet.rest.bodies import DeviceIdText, IdentifierText, MacText, RequestBody, ResponseBody, TimeText
from meshfleet.rest.gateways import Gateway
from meshfleet.rest.jobs import Execution
from meshfleet.rest.problems import FieldProblem  # noqa: TC001 # msgspec reads it
from meshfleet.rest.sites import SiteIdText, ZoneIdText  # noqa: TC001 # msgspec reads it

STREAM_PATH: Final = "/api/v1/stream"
"""REST path of live events as server-sent events (rest-147)."""

LIVE_PATH: Final = "/api/v1/live"
"""REST path of live events over a WebSocket (rest-151)."""

LIVE_EVENT_TYPES: Final = (
    *("device", "report", "job", "execution", "gateway", "topology", "position", "zone", "alarm", "resync"),
)
"""Types of live events (rest-146)."""

MAX_FILTER_VALUES: Final = 1000
"""Maximum number of values in one filter of live events, inclusive."""

MAX_PING_CHARACTERS: Final = 64
"""Maximum length of the string in a WebSocket `ping`, in characters."""


class LiveEvent(ResponseBody, frozen=True, kw_only=True):
    """Event that the service sends to live-event subscribers (rest-146)."""

    id: str
    """Opaque id; a subscriber that reconnects can resume after the event with this id (rest-149)."""
    type: Literal[
        "device", "report", "job", "execution", "gateway", "topology", "position", "zone", "alarm", "resync"
    ]
    time: TimeText
    data: Any
    """Content by type: a `Device`, a `Job`, or one of the live bodies such as `LiveSample`."""


class LiveSample(ResponseBody, frozen=True, kw_only=True):
    """Live report with the value of a property, measurement or event; fields as in `Sample` (rest-81)."""

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
    """Live report with a heartbeat of a device."""

    device: DeviceIdText
    gateway: MacText
    kind: Literal["heartbeat"] = "heartbeat"
    time: TimeText
    status: int


class LiveLink(ResponseBody, frozen=True, kw_only=True):
    """Live report of the signal strength of a device at a parent. Kind `dfu`: the device is in DFU mode."""

    device: DeviceIdText
    gateway: MacText
    kind: Literal["rssi", "dfu"]
    time: TimeText
    parent: MacText
    rssi: int
    unreachable: bool


class LiveGateway(Gateway, frozen=True, kw_only=True):
    """Content of a `gateway` event: the new state of a gateway, and how many devices changed with it."""

    cause: str
    """`connected`, `disconnected`, `claimed` or `renamed`; later versions may add causes of a change."""
    devices: int
    """Number of devices whose state changed with the gateway; these devices get no events of their own."""


class ReleasedGateway(ResponseBody, frozen=True, kw_only=True):
    """Content of a `gateway` event: the gateway was released."""

    mac: MacText
    device_id: DeviceIdText
    released: Literal[True] = True


class ForgottenDevice(ResponseBody, frozen=True, kw_only=True):
    """Content of a `device` event: the device was deleted from the registry."""

    id: DeviceIdText
    forgotten: Literal[True] = True


class DeletedJob(ResponseBody, frozen=True, kw_only=True):
    """Content of a `job` event: the job was deleted."""

    id: str
    deleted: Literal[True] = True


class LiveExecution(Execution, frozen=True, kw_only=True):
    """Execution whose state or progress changed, with the id of its job."""

    job_id: str


class LiveParentChange(ResponseBody, frozen=True, kw_only=True):
    """Content of a `topology` event: a device changed its parent in the mesh (rest-243)."""

    device: DeviceIdText
    parent: MacText
    previous: MacText | None
    """Parent before; null if it was not known."""
    gateway: MacText
    """Gateway of the new parent."""
    time: TimeText


class LivePosition(ResponseBody, frozen=True, kw_only=True):
    """Content of a `position` event: the estimated position of a device (rest-262)."""

    device: DeviceIdText
    site: SiteIdText
    floor: int
    x: float
    y: float
    radius: float
    """Radius in meters that holds the device with a probability of 0.9."""
    time: TimeText
    """Time of the newest reading."""


class LiveZoneChange(ResponseBody, frozen=True, kw_only=True):
    """Content of a `zone` event: a device entered or left a zone (rest-263)."""

    zone: ZoneIdText
    device: DeviceIdText
    change: Literal["entered", "left"]
    time: TimeText
    dwell_seconds: float | None
    """Seconds since the device entered; null if it enters."""


class Resync(ResponseBody, frozen=True, kw_only=True):
    """Notice that events were missed: the subscriber must read the current state over REST (rest-156)."""

    reason: str


class LiveFrame(RequestBody, frozen=True, kw_only=True):
    """Frame that a live-event subscriber sends. It has one of the first four fields (rest-152, rest-206)."""

    token: str | UnsetType = UNSET
    subscribe: dict[str, list[str]] | UnsetType = UNSET
    unsubscribe: dict[str, list[str]] | UnsetType = UNSET
    ping: Annotated[str, Meta(max_length=MAX_PING_CHARACTERS)] | UnsetType = UNSET
    last_event_id: str | UnsetType = UNSET
    """With `subscribe`: id of the last received event, after which the events resume."""


class LivePong(ResponseBody, frozen=True, kw_only=True):
    """WebSocket reply to a `ping`, which proves that the connection works (rest-206)."""

    pong: str
    """String that the `ping` contained."""


class LiveError(ResponseBody, frozen=True, kw_only=True):
    """Error because of which the service closes the WebSocket of live events."""

    code: str
    detail: str
    errors: tuple[FieldProblem, ...]


class LiveRefusal(ResponseBody, frozen=True, kw_only=True):
    """Last frame on a WebSocket of live events that the service closes because of an error."""

    error: LiveError
