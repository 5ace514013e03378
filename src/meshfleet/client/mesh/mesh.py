"""Gateways over any MQTT broker: their reports, and requests to them. No Meshfleet service is needed."""

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
from meshfleet.errors.mqtt import LinkClosed
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

    from meshfleet.client.arguments import Moment
    from meshfleet.client.mesh.reports import Report
    from meshfleet.client.mesh.requests import RequestParameters
    from meshfleet.protocol.codes import Kind
    from meshfleet.protocol.ids import Mac, Version
    from meshfleet.protocol.requests import Request
    from meshfleet.protocol.responses import ApiVersionResponse, ReadDecodedResponse, ReadResponse, Response

_DEFAULT_TIMEOUT: Final = 15.0
"""Seconds for an answer: a gateway gives up on a device after ten."""

_MAX_REMEMBERED_VERSIONS: Final = 10_000
"""Gateways whose version is remembered."""

_RECONNECT_BACKOFF: Final = ExponentialBackoff(maximum=10.0)
"""Somebody may be waiting for the connection to come back."""


class Mesh:
    """Gateways on a broker, as `async with Mesh("mqtt://user:password@host:1883") as mesh`.

    Entering connects, and raises what is in the way; later the connection comes back by itself. Gateways and
    devices are named by MAC or device id, in either case. An identifier in hex takes the raw operation, a
    name the decoded one. An answer is returned whatever its status: see `meshfleet.client.check`.

    A request without an answer raises `GatewayTimeout`. If the connection breaks, a read is asked again; a
    write is never sent twice, and raises `ConnectionLost` when the broker had not acknowledged it. After both
    errors it may have been carried out. `BrokerUnreachable`: nothing was sent.
    """

    def __init__(self, url: str, *, prefix: str = "", tls_ca: Path | None = None) -> None:
        """`prefix` stands in front of all topics; `tls_ca` names who vouches for the broker."""
        self._address = BrokerAddress.parse(url)
        self._topics = TopicCodec(prefix, identifier_names=BUILTIN_CATALOGUE.names)
        tls = None if tls_ca is None else create_tls_context(authorities=tls_ca)
        self._options = MqttOptions(tls=tls, backoff=_RECONNECT_BACKOFF)
        self._rpc = MeshRpcClient(self._address, _client_id(), self._topics, self._options)
        self._versions: OrderedDict[Mac, Version] = OrderedDict()
        self._report_subscriptions: dict[str, ReportSubscription] = {}
        """Those that somebody iterates over, by client id."""
        self._rejected = 0
        self._is_entered = False

    async def __aenter__(self) -> Self:
        if self._is_entered:
            raise LinkClosed("a Mesh is opened once: make another one")
        self._is_entered = True
        await self._rpc.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        try:
            for each in list(self._report_subscriptions.values()):
                await each.close()
        finally:
            await self._rpc.close()

    @property
    def rejected(self) -> int:
        """How many reports could not be read."""
        return self._rejected + sum(each.rejected for each in self._report_subscriptions.values())

    @property
    def pending(self) -> int:
        """How many requests wait for their answers."""
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
        """Reports as they come, on a connection of their own; what cannot be read is skipped and counted.

        With `session`, a client id that nobody else has, the broker keeps what comes while the program is
        away, as far as its limits go. A report is acknowledged when the next one is asked for, so the last
        one comes again after a break. Without `session`, what comes while there is no connection is lost.
        """
        return self._receive_reports(ReportFilter.parse(gateway, device, kinds), session)

    async def end_session(self, session: str) -> None:
        """Let the broker forget a session, and what waits there."""
        async with MqttClient(self._address, session, clean=True, options=self._options):
            pass

    async def _receive_reports(
        self, report_filter: ReportFilter, session: str | None
    ) -> AsyncGenerator[Report, None]:
        self._rpc.check_open()
        client_id = _client_id() if session is None else session
        if client_id in self._report_subscriptions:  # they would throw each other out, again and again
            raise ValueError(f"session {session!r} is being read already")
        reports = ReportSubscription(
            self._address, client_id, self._topics, clean=session is None, options=self._options
        )
        self._report_subscriptions[client_id] = reports
        try:
            async with aclosing(reports.receive(report_filter)) as heard:
                async for report in heard:
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
        timeout: float = _DEFAULT_TIMEOUT,  # noqa: ASYNC109 # as in every method here
    ) -> ApiVersionResponse:
        """Ask a gateway for its version. Later requests to it are checked against that before they leave."""
        mac = normalize_mac(gateway)
        topic = RequestTopic(mac, mac, Operation.APIVERSION)
        answer = await self._rpc.request(
            topic, build_apiversion(priority), is_repeatable=True, timeout=timeout
        )
        told = cast("ApiVersionResponse", answer)  # as its operation has it
        if told.version is not UNSET:
            self._remember_version(mac, told.version)
        return told

    async def read(
        self,
        gateway: str,
        device: str,
        identifier: str,
        *,
        timeout: float = _DEFAULT_TIMEOUT,  # noqa: ASYNC109
        **parameters: Unpack[RequestParameters],
    ) -> ReadResponse | ReadDecodedResponse:
        """Read a property of a device. Keys are hex, and shown to nobody."""
        topic = build_request_topic(gateway, device, Operation.READ, identifier)
        answer = await self._request(topic, build_read(parameters), timeout)
        return cast("ReadResponse | ReadDecodedResponse", answer)  # as its operation has it

    async def write(  # noqa: PLR0913 # by name, each may be left out
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
        """Write a property: hex or bytes to a raw identifier, any JSON to a name. None writes NULL.

        It is sent once, whatever happens to the connection.
        """
        topic = build_request_topic(gateway, device, Operation.WRITE, identifier)
        return await self._request(topic, build_write(topic.operation, value, ext, parameters), timeout)

    async def ack(  # noqa: PLR0913 # by name, each may be left out
        self,
        gateway: str,
        device: str,
        identifier: str,
        *,
        time: Moment,
        type: AckType | int = AckType.ACK,  # noqa: A002 # its name on the wire
        priority: int | None = None,
        timeout: float = _DEFAULT_TIMEOUT,  # noqa: ASYNC109
    ) -> None:
        """Acknowledge the sample of this time to its device; returns when the broker has it.

        There is no answer. Only gateways from version 2.4.0 on understand it.
        """
        topic = build_request_topic(gateway, device, Operation.ACK, identifier)
        await self._send_ack(topic, build_ack(time, type, priority), type, timeout)

    async def acknowledge(
        self,
        report: Report,
        type: AckType | int = AckType.ACK,  # noqa: A002 # as in `ack`
    ) -> None:
        """Acknowledge a report of a measurement or an event to its device."""
        await self._send_ack(
            build_ack_topic(report), build_ack(report.body.time, type, None), type, _DEFAULT_TIMEOUT
        )

    # Inside

    async def _request(self, topic: RequestTopic, request: Request, timeout: float) -> Response:  # noqa: ASYNC109
        self._check_supported(topic, request)
        return await self._rpc.request(topic, request, is_repeatable=is_repeatable(topic), timeout=timeout)

    async def _send_ack(self, topic: RequestTopic, ack: Request, kind: int, timeout: float) -> None:  # noqa: ASYNC109
        self._check_supported(topic, ack)
        await self._rpc.send(topic, ack, is_repeatable=is_repeatable(topic, kind), timeout=timeout)

    def _check_supported(self, topic: RequestTopic, request: Request) -> None:
        """Refuse what the gateway is known to be too old for (version-12)."""
        if (version := self._versions.get(topic.gateway)) is not None:
            requests.check_request_supported(topic.operation, request, version)

    def _remember_version(self, gateway: Mac, version: Version) -> None:
        self._versions[gateway] = version
        self._versions.move_to_end(gateway)
        if len(self._versions) > _MAX_REMEMBERED_VERSIONS:
            self._versions.popitem(last=False)


def _client_id() -> str:
    """One that nobody else has, and that every broker takes: 23 letters and digits [MQTT-3.1.3-5]."""
    return f"meshfleet{secrets.token_hex(7)}"
