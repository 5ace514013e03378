"""`fleet.requests`: reading and writing what devices hold, through the service.

Every request carries a key by which the service knows it again, so that it may be said twice when a
connection is lost, and is carried out once.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any, Final, TypedDict, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from meshfleet import rest
from meshfleet.client.arguments import (
    check_argument_names,
    check_text,
    check_timeout,
    format_optional_time,
    normalize_device_id,
    normalize_identifier,
    normalize_mac,
    parse_enum,
    select_operation,
    to_json_value,
    to_wire_value,
)
from meshfleet.client.rest.http_caller import iterate_items
from meshfleet.client.rest.http_messages import HttpRequest, encode_body, find_secrets
from meshfleet.protocol.codes import AccessType, AckType, Operation
from meshfleet.protocol.hex import Secret
from meshfleet.rest import NewRequest

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping
    from typing import Unpack

    from meshfleet.client.arguments import Moment
    from meshfleet.client.rest.http_caller import HttpCaller
    from meshfleet.client.rest.http_messages import HttpResponse
    from meshfleet.rest import RequestAccepted, RequestAnswer, RequestRecord

Value = TypeVar("Value")

_DEFAULT_TIMEOUT: Final = rest.DEFAULT_TIMEOUT_MS / 1000
_RESPOND_ASYNC: Final = ("Prefer", "respond-async")


class RequestOptions(TypedDict, total=False):
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

    def __init__(self, caller: HttpCaller) -> None:
        self._caller = caller

    async def read(self, device: str, identifier: str, **options: Unpack[RequestOptions]) -> RequestAnswer:
        """Read a property of a device."""
        return await self.send(device, _build_request(Operation.READ, identifier, options))

    async def write(
        self,
        device: str,
        identifier: str,
        value: Any = None,
        *,
        ext: Mapping[str, Any] | None = None,
        **options: Unpack[RequestOptions],
    ) -> RequestAnswer:
        """Write a property: hex or bytes to a raw identifier, any JSON to a name. None writes NULL."""
        extension: dict[str, Any] | UnsetType = UNSET if ext is None else dict(ext)
        request = _build_request(Operation.WRITE, identifier, options)
        return await self.send(device, msgspec.structs.replace(request, value=value, ext=extension))

    async def apiversion(
        self,
        gateway: str,
        *,
        priority: int | None = None,
        timeout: float = _DEFAULT_TIMEOUT,  # noqa: ASYNC109 # it is the service's
    ) -> RequestAnswer:
        """Ask a gateway for its version."""
        return await self.send(
            gateway, _build_request(Operation.APIVERSION, None, {"priority": priority, "timeout": timeout})
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
        request = _build_request(Operation.ACK, identifier, {"gateway": gateway, "priority": priority})
        when, kind = format_optional_time(time) or UNSET, parse_enum(AckType, type, "type")
        request = msgspec.structs.replace(request, time=when, type=int(kind))
        return self._caller.decode(rest.RequestAccepted, await self._post(device, request))

    async def send(self, device: str, request: NewRequest) -> RequestAnswer:
        """Send any request that is answered, and wait for that."""
        if not request.operation.is_answered:
            raise ValueError("an ack is not answered: post it")
        answer = await self._post(device, request, extra_timeout=request.timeout_ms / 1000)
        return self._caller.decode(rest.RequestAnswer, answer)

    async def post(self, device: str, request: NewRequest) -> RequestAccepted:
        """Send any request, and do not wait: `show` tells what became of it."""
        return self._caller.decode(rest.RequestAccepted, await self._post(device, request, _RESPOND_ASYNC))

    async def show(self, request: str) -> RequestRecord:
        """What became of a request."""
        return await self._caller.get(rest.RequestRecord, rest.request_path(check_text(request, "request")))

    def list(self, device: str) -> AsyncGenerator[RequestRecord, None]:
        """The requests to a device, the newest first."""
        return iterate_items(
            self._caller, rest.RequestPage, rest.device_requests_path(normalize_device_id(device))
        )

    async def _post(
        self, device: str, request: NewRequest, *headers: tuple[str, str], extra_timeout: float = 0.0
    ) -> HttpResponse:
        call = HttpRequest(
            method="POST",
            path=rest.device_requests_path(normalize_device_id(device)),
            body=encode_body(_encode_values(request)),
            headers=(("Idempotency-Key", secrets.token_urlsafe(16)), *headers),
            is_repeatable=True,
            extra_timeout=extra_timeout,
            secrets=find_secrets(request),
        )
        return await self._caller.send(call)


def _build_request(operation: Operation, identifier: str | None, options: RequestOptions) -> NewRequest:
    check_argument_names(options, RequestOptions)
    subject = None if identifier is None else normalize_identifier(identifier)
    gateway, access = options.get("gateway"), options.get("access_type")
    return NewRequest(
        operation=operation if subject is None else select_operation(subject, operation),
        identifier=_unset_if_none(subject),
        priority=_unset_if_none(options.get("priority")),
        extender_id=_unset_if_none(options.get("extender_id")),
        access_type=UNSET if access is None else parse_enum(AccessType, access, "accessType"),
        public_key=_unset_if_none(_reveal(options.get("public_key"))),
        key=_unset_if_none(_reveal(options.get("key"))),
        gateway=UNSET if gateway is None else normalize_mac(gateway),
        timeout_ms=round(check_timeout(options.get("timeout", _DEFAULT_TIMEOUT)) * 1000),
    )


def _encode_values(request: NewRequest) -> NewRequest:
    """The same with values as JSON has them, or an error."""
    if request.value is not UNSET:
        request = msgspec.structs.replace(request, value=to_wire_value(request.operation, request.value))
    if request.ext is not UNSET:
        request = msgspec.structs.replace(request, ext=to_json_value(request.ext, "ext"))
    return request


def _reveal(key: str | Secret | None) -> str | None:
    return key.reveal() if isinstance(key, Secret) else key


def _unset_if_none(value: Value | None) -> Value | UnsetType:
    return UNSET if value is None else value
