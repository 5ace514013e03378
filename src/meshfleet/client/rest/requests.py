"""`fleet.requests`: requests to devices through the service.

Every request has an idempotency key, so a request that is repeated after a lost connection is executed
only once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec import UNSET, UnsetType

from meshfleet.client.arguments import (
    RequestParameters,
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
    unset_if_none,
)
from meshfleet.client.rest.http_caller import RestResource
from meshfleet.protocol.codes import AccessType, AckType, Operation
from meshfleet.protocol.hex import Secret
from meshfleet.rest.paths import device_requests_path, request_path
from meshfleet.rest.requests import (
    DEFAULT_TIMEOUT_MS,
    NewRequest,
    RequestAccepted,
    RequestOutcome,
    RequestPage,
    RequestRecord,
)

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping
    from typing import Unpack

    from meshfleet.client.arguments import Moment
    from meshfleet.client.rest.http_messages import HttpResponse


_DEFAULT_TIMEOUT: Final = DEFAULT_TIMEOUT_MS / 1000
_RESPOND_ASYNC: Final = ("Prefer", "respond-async")


class RequestOptions(RequestParameters, total=False):
    """Options of a request to a device. None means the default of the service or the gateway."""

    gateway: str | None
    """Gateway through which the request is sent; None selects the gateway with the best signal."""
    timeout: float
    """Seconds that the service waits for the response of the device."""


class Requests(RestResource):
    """Sends requests to devices through the service, and reads the history of requests.

    For an identifier given as hex, values are raw bytes; for one given as a name, they are decoded
    (request-34). Responses with an error status are returned too; pass them to `meshfleet.client.check` to
    raise an error. If no response arrives, methods raise `Unanswered`.
    """

    async def read(self, device: str, identifier: str, **options: Unpack[RequestOptions]) -> RequestOutcome:
        """Read a property of a device: the raw value for a hex identifier, the decoded value for a name."""
        return await self.send(device, _build_request(Operation.READ, identifier, options))

    async def write(
        self,
        device: str,
        identifier: str,
        value: Any = None,
        *,
        ext: Mapping[str, Any] | None = None,
        **options: Unpack[RequestOptions],
    ) -> RequestOutcome:
        """Write a value to a property of a device. The value None writes NULL.

        For a hex identifier, the value is hex or bytes; for an identifier's name, any JSON.
        """
        extension: dict[str, Any] | UnsetType = UNSET if ext is None else dict(ext)
        request = _build_request(Operation.WRITE, identifier, options)
        return await self.send(device, msgspec.structs.replace(request, value=value, ext=extension))

    async def apiversion(
        self,
        gateway: str,
        *,
        priority: int | None = None,
        timeout: float = _DEFAULT_TIMEOUT,  # noqa: ASYNC109 # sent to the service, which enforces it
    ) -> RequestOutcome:
        """Read the API version of a gateway."""
        return await self.send(
            gateway, _build_request(Operation.APIVERSION, None, {"priority": priority, "timeout": timeout})
        )

    async def ack(  # noqa: PLR0913 # most are optional keywords
        self,
        device: str,
        identifier: str,
        *,
        time: Moment,
        type: AckType | int = AckType.ACK,  # noqa: A002 # the field name in the payload
        gateway: str | None = None,
        priority: int | None = None,
    ) -> RequestAccepted:
        """Send a device an ack for its sample with this time. Devices send no response to an ack."""
        request = _build_request(Operation.ACK, identifier, {"gateway": gateway, "priority": priority})
        formatted_time, ack_type = format_optional_time(time) or UNSET, parse_enum(AckType, type, "type")
        request = msgspec.structs.replace(request, time=formatted_time, type=int(ack_type))
        return self._caller.decode(RequestAccepted, await self._post_request(device, request))

    async def send(self, device: str, request: NewRequest) -> RequestOutcome:
        """Send a request to a device and wait for the response of the device."""
        if not request.operation.is_answered:
            raise ValueError("an ack has no response: use post")
        response = await self._post_request(device, request, extra_timeout=request.timeout_ms / 1000)
        return self._caller.decode(RequestOutcome, response)

    async def post(self, device: str, request: NewRequest) -> RequestAccepted:
        """Send a request to a device without waiting for the response, which `show` returns later."""
        return self._caller.decode(RequestAccepted, await self._post_request(device, request, _RESPOND_ASYNC))

    async def show(self, request: str) -> RequestRecord:
        """Get the state and the response of the request with this id."""
        return await self._caller.get(RequestRecord, request_path(check_text(request, "request")))

    def list(self, device: str) -> AsyncGenerator[RequestRecord, None]:
        """List the requests to a device, the newest first."""
        return self._caller.iterate_items(RequestPage, device_requests_path(normalize_device_id(device)))

    async def _post_request(
        self, device: str, request: NewRequest, *headers: tuple[str, str], extra_timeout: float = 0.0
    ) -> HttpResponse:
        return await self._caller.post_once(
            device_requests_path(normalize_device_id(device)),
            _encode_values(request),
            headers=headers,
            extra_timeout=extra_timeout,
        )


def _build_request(operation: Operation, identifier: str | None, options: RequestOptions) -> NewRequest:
    check_argument_names(options, RequestOptions)
    normalized = None if identifier is None else normalize_identifier(identifier)
    gateway, access = options.get("gateway"), options.get("access_type")
    return NewRequest(
        operation=operation if normalized is None else select_operation(normalized, operation),
        identifier=unset_if_none(normalized),
        priority=unset_if_none(options.get("priority")),
        extender_id=unset_if_none(options.get("extender_id")),
        access_type=UNSET if access is None else parse_enum(AccessType, access, "accessType"),
        public_key=unset_if_none(_reveal_key(options.get("public_key"))),
        key=unset_if_none(_reveal_key(options.get("key"))),
        gateway=UNSET if gateway is None else normalize_mac(gateway),
        timeout_ms=round(check_timeout(options.get("timeout", _DEFAULT_TIMEOUT)) * 1000),
    )


def _encode_values(request: NewRequest) -> NewRequest:
    """Convert `value` and `ext` of a request to JSON types. Raise `UnencodableValue` for other types."""
    if request.value is not UNSET:
        request = msgspec.structs.replace(request, value=to_wire_value(request.operation, request.value))
    if request.ext is not UNSET:
        request = msgspec.structs.replace(request, ext=to_json_value(request.ext, "ext"))
    return request


def _reveal_key(key: str | Secret | None) -> str | None:
    return key.reveal() if isinstance(key, Secret) else key
