"""Bodies about requests to gateways, and to devices through them."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Final, Literal

from msgspec import UNSET, Meta, UnsetType

from meshfleet.protocol.codes import AccessType, Operation  # noqa: TC001 # msgspec reads them
from meshfleet.rest.bodies import DeviceIdText, MacText, RequestBody, ResponseBody, TimeText

REQUESTS_PATH: Final = "/api/v1/requests"
"""Where one of them is looked up (rest-104)."""

DEFAULT_TIMEOUT_MS: Final = 15_000
"""Milliseconds (rest-98)."""

PriorityNumber = Annotated[float, Meta(ge=0, le=4)]
AckNumber = Annotated[float, Meta(ge=0, le=2)]
"""Whole, which may be written `2.0` (report-17)."""
Milliseconds = Annotated[int, Meta(ge=100, le=120_000)]


class RequestState(StrEnum):
    """How far a request has come (rest-104)."""

    PENDING = "PENDING"
    DONE = "DONE"
    """A response came, whatever its status; an ack, which has none, was sent."""
    TIMED_OUT = "TIMED_OUT"
    FAILED = "FAILED"


class NewRequest(RequestBody, frozen=True, kw_only=True):
    """A request to be sent (rest-97). It shows its keys to nobody (request-32)."""

    operation: Operation
    identifier: str | UnsetType = UNSET
    value: Any = UNSET
    """Null, or none at all, writes NULL."""
    ext: dict[str, Any] | UnsetType = UNSET
    priority: PriorityNumber | UnsetType = UNSET
    extender_id: str | UnsetType = UNSET
    access_type: AccessType | UnsetType = UNSET
    public_key: str | UnsetType = UNSET
    key: str | UnsetType = UNSET
    gateway: str | UnsetType = UNSET
    """Through which it is to go; without it the service chooses (rest-102)."""
    timeout_ms: Milliseconds = DEFAULT_TIMEOUT_MS
    time: str | UnsetType = UNSET
    """Of the sample to acknowledge."""
    type: AckNumber | UnsetType = UNSET
    """Of an ack."""

    def __repr__(self) -> str:
        return f"NewRequest(operation={str(self.operation)!r}, identifier={self.identifier!r}, …)"

    def __rich_repr__(self) -> list[tuple[str, object]]:
        return [("operation", str(self.operation)), ("identifier", self.identifier)]


class GatewayCandidate(ResponseBody, frozen=True, kw_only=True):
    """A gateway through which a device may be reached."""

    gateway: MacText
    connected: bool
    rssi: float | None
    """How the device was heard behind it of late, by the parent that counts; null: not of late."""
    heard_at: TimeText | None
    failed_at: TimeText | None = None
    """When its last try for the device failed (no answer, or no route), within the last ten minutes."""


class GatewayChoice(ResponseBody, frozen=True, kw_only=True):
    """Why a request went through this gateway (rest-193).

    `asked`: the request named it. `itself`: the device is a gateway. `strongest`: of those that are connected
    it hears the device best, signal weighted by age. `last-heard`: the device reported through it, and no
    other gateway has a reading that counts for more. `next-best`: the last try through a better one failed.
    """

    reason: Literal["asked", "itself", "strongest", "last-heard", "next-best"]
    candidates: list[GatewayCandidate]
    """All that came into question, the best first."""


class RequestAnswer(ResponseBody, frozen=True, kw_only=True):
    """A response of a gateway, whatever its status, and through which gateway it came (rest-99)."""

    id: str
    time: TimeText
    status: int
    response_time: int | float | UnsetType = UNSET
    origin: int | UnsetType = UNSET
    error_message: str | UnsetType = UNSET
    route: str | UnsetType = UNSET
    extender_id: str | UnsetType = UNSET
    extender_route: str | UnsetType = UNSET
    version: str | UnsetType = UNSET
    value: Any = UNSET
    ext: dict[str, Any] | UnsetType = UNSET
    gateway: MacText
    choice: GatewayChoice


class RequestAccepted(ResponseBody, frozen=True, kw_only=True):
    """A request that is on its way (rest-103), or an ack that was sent (rest-105)."""

    id: str
    state: Literal["PENDING", "SENT"]


class SentRequest(ResponseBody, frozen=True, kw_only=True):
    """What was asked, without any key (request-31)."""

    operation: Operation
    identifier: str | UnsetType = UNSET
    value: Any = UNSET
    ext: dict[str, Any] | UnsetType = UNSET
    priority: int | UnsetType = UNSET
    extender_id: str | UnsetType = UNSET
    access_type: str | UnsetType = UNSET
    time: TimeText | UnsetType = UNSET
    type: int | UnsetType = UNSET
    timeout_ms: int


class RequestProblem(ResponseBody, frozen=True, kw_only=True):
    """Why no response came."""

    code: str
    detail: str


class RequestRecord(ResponseBody, frozen=True, kw_only=True):
    """A request of the past, or one that still waits (rest-104)."""

    id: str
    state: RequestState
    device: DeviceIdText
    gateway: MacText | None
    """Null when it went nowhere."""
    by: str
    """Who asked."""
    requested_at: TimeText
    finished_at: TimeText | None
    request: SentRequest
    response: RequestAnswer | None
    problem: RequestProblem | None


class RequestPage(ResponseBody, frozen=True, kw_only=True):
    """Requests to a device, the newest first."""

    items: list[RequestRecord]
    next_token: str | None
