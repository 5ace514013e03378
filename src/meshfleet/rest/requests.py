"""JSON bodies of the REST API: requests to gateways and devices, and their responses."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Final, Literal

from msgspec import UNSET, Meta, UnsetType

from meshfleet.protocol.codes import AccessType, Operation  # noqa: TC001 # msgspec reads them
from meshfleet.rest.bodies import DeviceIdText, MacText, RequestBody, ResponseBody, TimeText

REQUESTS_PATH: Final = "/api/v1/requests"
"""REST path of the states of requests to devices (rest-104)."""

DEFAULT_TIMEOUT_MS: Final = 15_000
"""Default timeout of a request to a device in milliseconds (rest-98)."""

PriorityNumber = Annotated[float, Meta(ge=0, le=4)]
AckNumber = Annotated[float, Meta(ge=0, le=2)]
"""Type of an ack: a whole number from 0 to 2, which may be written as `2.0` (report-17)."""
Milliseconds = Annotated[int, Meta(ge=100, le=120_000)]


class RequestState(StrEnum):
    """State of a request to a device (rest-104)."""

    PENDING = "PENDING"
    DONE = "DONE"
    """A response arrived, with any status; or the request is an ack, which has no response, and was sent."""
    TIMED_OUT = "TIMED_OUT"
    FAILED = "FAILED"


class NewRequest(RequestBody, frozen=True, kw_only=True):
    """Request to send to a device (rest-97). `repr()` omits the secret keys (request-32)."""

    operation: Operation
    identifier: str | UnsetType = UNSET
    value: Any = UNSET
    """Value to write to the device; null or absent means the value NULL of the gateway protocol."""
    ext: dict[str, Any] | UnsetType = UNSET
    priority: PriorityNumber | UnsetType = UNSET
    extender_id: str | UnsetType = UNSET
    access_type: AccessType | UnsetType = UNSET
    public_key: str | UnsetType = UNSET
    key: str | UnsetType = UNSET
    gateway: str | UnsetType = UNSET
    """Gateway through which to send the request; if absent, the service selects a gateway (rest-102)."""
    timeout_ms: Milliseconds = DEFAULT_TIMEOUT_MS
    time: str | UnsetType = UNSET
    """Time of the sample to acknowledge; only for the operation `ack`."""
    type: AckNumber | UnsetType = UNSET
    """Type of the ack, 0 to 2; only for the operation `ack`."""

    def __repr__(self) -> str:
        return f"NewRequest(operation={str(self.operation)!r}, identifier={self.identifier!r}, …)"

    def __rich_repr__(self) -> list[tuple[str, object]]:
        return [("operation", str(self.operation)), ("identifier", self.identifier)]


class GatewayCandidate(ResponseBody, frozen=True, kw_only=True):
    """Gateway through which the service can send a request to a device."""

    gateway: MacText
    connected: bool
    rssi: float | None
    """Recent RSSI of the device in dBm, at the selected parent behind this gateway; null if there is no
    recent reading."""
    heard_at: TimeText | None
    failed_at: TimeText | None = None
    """Time of the last request that failed (no response, or no route) within the last ten minutes."""


class GatewayChoice(ResponseBody, frozen=True, kw_only=True):
    """Reason why the service sent a request through a certain gateway (rest-193).

    `asked`: the request names the gateway. `itself`: the device is a gateway. `strongest`: of all connected
    gateways, the gateway has the best signal, weighted by age. `last-heard`: the device reported through the
    gateway, and no other gateway has a better reading. `next-best`: the last attempt through a better
    gateway failed.
    """

    reason: Literal["asked", "itself", "strongest", "last-heard", "next-best"]
    candidates: list[GatewayCandidate]
    """All gateways that were considered, the best gateway first."""


class RequestOutcome(ResponseBody, frozen=True, kw_only=True):
    """Response to a request, with any status, and the gateway through which it arrived (rest-99)."""

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
    """Request that waits for its response (rest-103), or ack that was sent (rest-105)."""

    id: str
    state: Literal["PENDING", "SENT"]


class SentRequest(ResponseBody, frozen=True, kw_only=True):
    """Request as it was sent to a device, but without network keys and public keys (request-31)."""

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
    """Reason why no response to a request arrived."""

    code: str
    detail: str


class RequestRecord(ResponseBody, frozen=True, kw_only=True):
    """Pending or finished request to a device, with its response (rest-104)."""

    id: str
    state: RequestState
    device: DeviceIdText
    gateway: MacText | None
    """Gateway through which the request was sent; null if the request was not sent."""
    by: str
    """Account that sent the request."""
    requested_at: TimeText
    finished_at: TimeText | None
    request: SentRequest
    response: RequestOutcome | None
    problem: RequestProblem | None


class RequestPage(ResponseBody, frozen=True, kw_only=True):
    """Page of the requests to a device, the newest request first."""

    items: list[RequestRecord]
    next_token: str | None
