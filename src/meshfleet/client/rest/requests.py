"""`fleet.requests`: reading and writing what devices hold, through the service.

Every request carries a key by which the service knows it again, so that it may be said twice when a
connection is lost, and is carried out once.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any, Final, TypedDict, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from meshfleet.client.names import (
    check_names,
    id_of,
    identifier_of,
    mac_of,
    moment,
    one_of,
    operation_on,
    seconds,
    text_of,
)
from meshfleet.client.rest.calls import Call, secrets_in, written
from meshfleet.client.rest.pages import walk
from meshfleet.client.values import as_json, value_for
from meshfleet.wire import rest
from meshfleet.wire.codes import AccessType, AckType, Operation
from meshfleet.wire.hextext import Secret
from meshfleet.wire.rest import NewRequest

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping
    from typing import Unpack

    from meshfleet.client.names import Moment
    from meshfleet.client.rest.calls import Answer
    from meshfleet.client.rest.desk import Desk
    from meshfleet.wire.rest import RequestAccepted, RequestAnswer, RequestRecord

Value = TypeVar("Value")

_TIMEOUT: Final = rest.DEFAULT_TIMEOUT / 1000
_ASYNC: Final = ("Prefer", "respond-async")


class Way(TypedDict, total=False):
    """How a request reaches its device. None: as the service and the gateway see fit."""

    gateway: str | None
    """Through which it is to go."""
    priority: int | None
    """0 to 4: how urgent it is inside the mesh."""
    extender_id: str | None
    access_type: AccessType | str | None
    public_key: str | Secret | None
    key: str | Secret | None
    """In hex: secrets, which are never kept or shown."""
    timeout: float
    """Seconds until there must be an answer."""


class Requests:
    """Requests to devices. An identifier in hex takes the raw operation, a name the decoded one (request-34).

    An answer is returned whatever its status: see `meshfleet.client.check`. No answer is an `Unanswered`.
    """

    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    async def read(self, device: str, identifier: str, **way: Unpack[Way]) -> RequestAnswer:
        """Read a property of a device."""
        return await self.send(device, _request(Operation.READ, identifier, way))

    async def write(
        self,
        device: str,
        identifier: str,
        value: Any = None,
        *,
        ext: Mapping[str, Any] | None = None,
        **way: Unpack[Way],
    ) -> RequestAnswer:
        """Write a property: hex or bytes to a raw identifier, any JSON to a name. None writes NULL."""
        extension: dict[str, Any] | UnsetType = UNSET if ext is None else dict(ext)
        request = _request(Operation.WRITE, identifier, way)
        return await self.send(device, msgspec.structs.replace(request, value=value, ext=extension))

    async def apiversion(
        self,
        gateway: str,
        *,
        priority: int | None = None,
        timeout: float = _TIMEOUT,  # noqa: ASYNC109 # it is the service's
    ) -> RequestAnswer:
        """Ask a gateway for its version."""
        return await self.send(
            gateway, _request(Operation.APIVERSION, None, {"priority": priority, "timeout": timeout})
        )

    async def ack(  # noqa: PLR0913 # by name, each may be left out
        self,
        device: str,
        identifier: str,
        *,
        time: Moment,
        type: AckType | int = AckType.ACK,  # noqa: A002 # its name on the wire
        gateway: str | None = None,
        priority: int | None = None,
    ) -> RequestAccepted:
        """Acknowledge the sample of this time to its device. There is no answer to wait for."""
        request = _request(Operation.ACK, identifier, {"gateway": gateway, "priority": priority})
        when, kind = moment(time) or UNSET, one_of(AckType, type, "type")
        request = msgspec.structs.replace(request, time=when, type=int(kind))
        return self._desk.read(rest.RequestAccepted, await self._post(device, request))

    async def send(self, device: str, request: NewRequest) -> RequestAnswer:
        """Send any request that is answered, and wait for that."""
        if not request.operation.is_answered:
            raise ValueError("an ack is not answered: post it")
        answer = await self._post(device, request, patience=request.timeout_ms / 1000)
        return self._desk.read(rest.RequestAnswer, answer)

    async def post(self, device: str, request: NewRequest) -> RequestAccepted:
        """Send any request, and do not wait: `show` tells what became of it."""
        return self._desk.read(rest.RequestAccepted, await self._post(device, request, _ASYNC))

    async def show(self, request: str) -> RequestRecord:
        """What became of a request."""
        return await self._desk.get(rest.RequestRecord, rest.request_path(text_of(request, "request")))

    def list(self, device: str) -> AsyncGenerator[RequestRecord, None]:
        """The requests to a device, the newest first."""
        return walk(self._desk, rest.RequestPage, rest.device_requests_path(id_of(device)))

    async def _post(
        self, device: str, request: NewRequest, *headers: tuple[str, str], patience: float = 0.0
    ) -> Answer:
        call = Call(
            method="POST",
            path=rest.device_requests_path(id_of(device)),
            body=written(_sendable(request)),
            headers=(("Idempotency-Key", secrets.token_urlsafe(16)), *headers),
            is_repeatable=True,
            patience=patience,
            secrets=secrets_in(request),
        )
        return await self._desk.ask(call)


def _request(operation: Operation, identifier: str | None, way: Way) -> NewRequest:
    check_names(way, Way)
    subject = None if identifier is None else identifier_of(identifier)
    gateway, access = way.get("gateway"), way.get("access_type")
    return NewRequest(
        operation=operation if subject is None else operation_on(subject, operation),
        identifier=_given(subject),
        priority=_given(way.get("priority")),
        extender_id=_given(way.get("extender_id")),
        access_type=UNSET if access is None else one_of(AccessType, access, "accessType"),
        public_key=_given(_revealed(way.get("public_key"))),
        key=_given(_revealed(way.get("key"))),
        gateway=UNSET if gateway is None else mac_of(gateway),
        timeout_ms=round(seconds(way.get("timeout", _TIMEOUT)) * 1000),
    )


def _sendable(request: NewRequest) -> NewRequest:
    """The same with values as JSON has them, or an error."""
    if request.value is not UNSET:
        request = msgspec.structs.replace(request, value=value_for(request.operation, request.value))
    if request.ext is not UNSET:
        request = msgspec.structs.replace(request, ext=as_json(request.ext, "ext"))
    return request


def _revealed(key: str | Secret | None) -> str | None:
    return key.reveal() if isinstance(key, Secret) else key


def _given(value: Value | None) -> Value | UnsetType:
    return UNSET if value is None else value
