"""`Mesh` receives reports of gateways and sends requests to them over MQTT, without a Meshfleet service."""

from __future__ import annotations

import secrets
from collections import OrderedDict
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Final, Self, cast

from msgspec import UNSET

from meshfleet.client.arguments import normalize_mac
from meshfleet.client.mesh.reports import ReportFilter, ReportSubscription
from meshfleet.client.mesh.requests import (
    build_ack,
    build_ack_topic,
    build_apiversion,
    build_read,
    build_request_topic,
    build_write,
    is_repeatable,
)
from meshfleet.client.mesh.rpc import MeshRpcClient
from meshfleet.errors.mqtt import ConnectionClosed
from meshfleet.mqtt.client import BrokerAddress, ExponentialBackoff, MqttClient, MqttOptions
from meshfleet.protocol import requests
from meshfleet.protocol.codes import AckType, Operation
from meshfleet.protocol.identifiers import BUILTIN_CATALOGUE
from meshfleet.protocol.topics import RequestTopic, TopicCodec
from meshfleet.tls import create_tls_context

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterable, Mapping
    from pathlib import Path
    from typing import Unpack

    from meshfleet.client.arguments import Moment, RequestParameters
    from meshfleet.client.mesh.reports import Report
    from meshfleet.protocol.codes import Kind
    from meshfleet.protocol.ids import Mac, Version
    from meshfleet.protocol.requests import Request
    from meshfleet.protocol.responses import ApiVersionResponse, ReadDecodedResponse, ReadResponse, Response

_DEFAULT_TIMEOUT: Final = 15.0
"""Default seconds to wait for a response to a request. A gateway waits ten seconds for a device."""

_MAX_REMEMBERED_VERSIONS: Final = 10_000
"""Maximum number of gateways whose API version `Mesh` remembers."""

_RECONNECT_BACKOFF: Final = ExponentialBackoff(maximum=10.0)
"""Delays between attempts to reconnect to the broker: at most 10 s, because requests may be waiting."""


class Mesh:
    """Gateways on an MQTT broker: `async with Mesh("mqtt://user:password@host:1883") as mesh`.

    Entering the block connects to the broker, or raises a `MqttError`. After a lost connection, `Mesh`
    reconnects. Methods accept a MAC or device id in upper or lower case. A hex identifier selects the raw
    operation, an identifier's name the decoded operation. Responses with an error status are returned too;
    pass them to `meshfleet.client.check` to raise an error.

    A request without a response raises `GatewayTimeout`. If the connection breaks, a read is sent again. A
    write is never sent twice: if the broker had not acknowledged the write, the method raises
    `ConnectionLost`. After `GatewayTimeout` or `ConnectionLost`, the request may have been executed.
    `BrokerUnreachable` means that the request was not sent.
    """

    def __init__(self, url: str, *, prefix: str = "", tls_ca: Path | None = None) -> None:
        """Create a client. `prefix` is the MQTT topic prefix, `tls_ca` a PEM file of CA certificates."""
        self._address = BrokerAddress.parse(url)
        self._topics = TopicCodec(prefix, identifier_names=BUILTIN_CATALOGUE.names)
        tls = None if tls_ca is None else create_tls_context(authorities=tls_ca)
        self._options = MqttOptions(tls=tls, backoff=_RECONNECT_BACKOFF)
        self._rpc = MeshRpcClient(self._address, _generate_client_id(), self._topics, self._options)
        self._versions: OrderedDict[Mac, Version] = OrderedDict()
        self._report_subscriptions: dict[str, ReportSubscription] = {}
        """Report subscriptions that are in use, by MQTT client id."""
        self._rejected = 0
        self._is_entered = False

    async def __aenter__(self) -> Self:
        if self._is_entered:
            raise ConnectionClosed("a Mesh can be opened only once: create another one")
        self._is_entered = True
        await self._rpc.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        try:
            for subscription in list(self._report_subscriptions.values()):
                await subscription.close()
        finally:
            await self._rpc.close()

    @property
    def rejected(self) -> int:
        """Number of received reports that could not be decoded."""
        return self._rejected + sum(each.rejected for each in self._report_subscriptions.values())

    @property
    def pending(self) -> int:
        """Number of sent requests that wait for responses of gateways."""
        return self._rpc.pending

    # Reports

    def reports(
        self,
        *,
        gateway: str | None = None,
        device: str | None = None,
        kinds: Kind | str | Iterable[Kind | str] = (),
        session: str | None = None,
    ) -> AsyncGenerator[Report, None]:
        """Iterate over reports of gateways as they arrive, on a separate MQTT connection.

        Only reports of `kinds` are received; an empty tuple means all kinds. Undecodable reports are skipped,
        and counted in `rejected`.

        `session` is an MQTT client id that no other client uses. With a session, the broker queues reports
        while the program is not connected, within the limits of the broker. A report is acknowledged when the
        next report is requested, so after a crash or a `break` the last report is delivered again. Without
        `session`, reports that are published while there is no connection are lost.
        """
        return self._receive_reports(ReportFilter.parse(gateway, device, kinds), session)

    async def end_session(self, session: str) -> None:
        """Delete an MQTT session on the broker, including the reports queued for the session."""
        async with MqttClient(self._address, session, clean=True, options=self._options):
            pass

    async def _receive_reports(
        self, report_filter: ReportFilter, session: str | None
    ) -> AsyncGenerator[Report, None]:
        self._rpc.check_open()
        client_id = _generate_client_id() if session is None else session
        if client_id in self._report_subscriptions:  # the broker would disconnect them in turns
            raise ValueError(f"session {session!r} is already being read")
        reports = ReportSubscription(
            self._address, client_id, self._topics, clean=session is None, options=self._options
        )
        self._report_subscriptions[client_id] = reports
        try:
            async with aclosing(reports.receive(report_filter)) as received:
                async for report in received:
                    yield report
        finally:
            self._report_subscriptions.pop(client_id, None)
            self._rejected += reports.rejected

    # Requests

    async def apiversion(
        self,
        gateway: str,
        *,
        priority: int | None = None,
        timeout: float = _DEFAULT_TIMEOUT,  # noqa: ASYNC109 # the SDK's methods take their timeout as an argument
    ) -> ApiVersionResponse:
        """Read the API version of a gateway.

        Later requests to this gateway raise `GatewayTooOld` if they need a newer API version.
        """
        mac = normalize_mac(gateway)
        topic = RequestTopic(mac, mac, Operation.APIVERSION)
        response = await self._rpc.request(
            topic, build_apiversion(priority), is_repeatable=True, timeout=timeout
        )
        typed = cast("ApiVersionResponse", response)  # the type belongs to the operation
        if typed.version is not UNSET:
            self._remember_version(mac, typed.version)
        return typed

    async def read(
        self,
        gateway: str,
        device: str,
        identifier: str,
        *,
        timeout: float = _DEFAULT_TIMEOUT,  # noqa: ASYNC109
        **parameters: Unpack[RequestParameters],
    ) -> ReadResponse | ReadDecodedResponse:
        """Read a property of a device: the raw value for a hex identifier, the decoded value for a name."""
        topic = build_request_topic(gateway, device, Operation.READ, identifier)
        response = await self._request(topic, build_read(parameters), timeout)
        return cast("ReadResponse | ReadDecodedResponse", response)  # the type belongs to the operation

    async def write(  # noqa: PLR0913 # most are optional keywords
        self,
        gateway: str,
        device: str,
        identifier: str,
        value: Any = None,
        *,
        ext: Mapping[str, Any] | None = None,
        timeout: float = _DEFAULT_TIMEOUT,  # noqa: ASYNC109
        **parameters: Unpack[RequestParameters],
    ) -> Response:
        """Write a value to a property of a device. The value None writes NULL.

        For a hex identifier, the value is hex or bytes; for an identifier's name, any JSON. A write is sent
        only once, even if the connection breaks.
        """
        topic = build_request_topic(gateway, device, Operation.WRITE, identifier)
        return await self._request(topic, build_write(topic.operation, value, ext, parameters), timeout)

    async def ack(  # noqa: PLR0913 # most are optional keywords
        self,
        gateway: str,
        device: str,
        identifier: str,
        *,
        time: Moment,
        type: AckType | int = AckType.ACK,  # noqa: A002 # the field name in the payload
        priority: int | None = None,
        timeout: float = _DEFAULT_TIMEOUT,  # noqa: ASYNC109
    ) -> None:
        """Send a device an ack for its sample with this time. Return when the broker has received the ack.

        Gateways send no response to an ack. Only gateways with API version 2.4.0 or newer support acks.
        """
        topic = build_request_topic(gateway, device, Operation.ACK, identifier)
        await self._send_ack(topic, build_ack(time, type, priority), type, timeout)

    async def acknowledge(
        self,
        report: Report,
        type: AckType | int = AckType.ACK,  # noqa: A002 # as in `ack`
    ) -> None:
        """Acknowledge a measurement or event report to its device, as `ack` does."""
        await self._send_ack(
            build_ack_topic(report), build_ack(report.body.time, type, None), type, _DEFAULT_TIMEOUT
        )

    # Internal

    async def _request(self, topic: RequestTopic, request: Request, timeout: float) -> Response:  # noqa: ASYNC109
        self._check_supported(topic, request)
        return await self._rpc.request(topic, request, is_repeatable=is_repeatable(topic), timeout=timeout)

    async def _send_ack(self, topic: RequestTopic, ack: Request, kind: int, timeout: float) -> None:  # noqa: ASYNC109
        self._check_supported(topic, ack)
        await self._rpc.send(topic, ack, is_repeatable=is_repeatable(topic, kind), timeout=timeout)

    def _check_supported(self, topic: RequestTopic, request: Request) -> None:
        """Raise `GatewayTooOld` if the gateway's API version was read and is too old (version-12)."""
        if (version := self._versions.get(topic.gateway)) is not None:
            requests.check_request_supported(topic.operation, request, version)

    def _remember_version(self, gateway: Mac, version: Version) -> None:
        self._versions[gateway] = version
        self._versions.move_to_end(gateway)
        if len(self._versions) > _MAX_REMEMBERED_VERSIONS:
            self._versions.popitem(last=False)


def _generate_client_id() -> str:
    """Return a random MQTT client id that every broker accepts: 23 letters and digits [MQTT-3.1.3-5]."""
    return f"meshfleet{secrets.token_hex(7)}"
