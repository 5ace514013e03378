"""Checks of connections: to the listeners, to the public URL, and to the external broker."""

from __future__ import annotations

import asyncio
import secrets
import socket
import ssl
from contextlib import closing
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

import msgspec
from msgspec.structs import replace

from meshfleet.errors.mqtt import MqttError
from meshfleet.errors.startup import UnusableAddress
from meshfleet.mqtt.client import BrokerAddress, MqttClient
from meshfleet.protocol.decoders import get_decoder
from meshfleet.rest.operations import FORWARDING_HEADER, Forwarding, NotReady
from meshfleet.rest.paths import READINESS_PATH
from meshfleet.service.doctor.finding import Finding, Level, describe_error
from meshfleet.service.doctor.process import find_port_owner
from meshfleet.service.external_broker.client import build_link_options
from meshfleet.service.homeassistant.removal import check_login
from meshfleet.service.influx.target import InfluxTarget, TargetUnavailable
from meshfleet.service.sockets import open_listener

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from meshfleet.service.doctor.process import RunningService
    from meshfleet.settings import ListenAddress, Settings

_TIMEOUT_SECONDS: Final = 5.0
_MAX_BODY_BYTES: Final = 100_000
_LOOPBACK: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 # addresses that are compared


def check_listeners(settings: Settings, service: RunningService | None) -> Iterator[Finding]:
    """Check that the running service accepts connections, or that its ports are free if none is running."""
    names = {"http": settings.http, "mqtt": settings.mqtt}
    names |= {"mqtt-tls": settings.mqtt_tls, "mqtt-ws": settings.mqtt_ws}
    listeners = {name: address for name, address in names.items() if address is not None and address.port}
    problems = [
        Finding(Level.FAIL, "listeners", problem, f"meshfleet serve --{name} HOST:PORT")
        for name, address in listeners.items()
        if (problem := _find_listener_problem(name, address, service)) is not None
    ]
    texts = ", ".join(f"{name} {address}" for name, address in listeners.items())
    state = "free" if service is None else "accepting connections"
    yield from problems or [Finding(Level.OK, "listeners", f"{texts or 'any free ports'}: {state}")]


def _find_listener_problem(name: str, address: ListenAddress, service: RunningService | None) -> str | None:
    """Return why a listener does not work, or why its port cannot be used; None if all is well."""
    if service is not None:
        try:
            socket.create_connection(_to_loopback(address), timeout=_TIMEOUT_SECONDS).close()
        except OSError as exc:
            return f"{name} {address}: {service} does not accept connections: {describe_error(exc)}"
        return None
    try:
        with open_listener(address, name):
            return None
    except UnusableAddress as exc:
        owner = find_port_owner(address.port)
        return str(exc) if owner is None else f"{name} {address} is in use by {owner}"


def _to_loopback(address: ListenAddress) -> tuple[str, int]:
    """Return host and port at which a listener is reached from this machine."""
    return _LOOPBACK.get(address.host, address.host), address.port


def check_public_url(settings: Settings, service: RunningService | None) -> Iterator[Finding]:
    """Check that the service responds as ready at its public URL, which clients and gateways use."""
    url = settings.public_url
    if service is None:
        yield Finding(Level.OK, "public-url", "not asked: no service is running")
        return
    if url is None:
        if settings.tls_cert is not None or not settings.http.port:
            yield Finding(Level.OK, "public-url", "not asked: public-url is not set")
            return
        host, port = _to_loopback(settings.http)
        url = f"http://{settings.http._replace(host=host, port=port)}"
    try:
        problem, forwarding = _request_readiness(url, settings.tls_cert)
    except (OSError, HTTPException) as exc:
        problem, forwarding = f"does not respond: {_describe_network_error(exc)}", None
    command = f"curl -i {url}{READINESS_PATH}"
    if problem is None:
        yield Finding(Level.OK, "public-url", f"{url} is ready")
    else:
        yield Finding(Level.FAIL, "public-url", f"{url} {problem}", command)
    if settings.public_url is not None and forwarding is not None:
        yield _assess_proxy(forwarding, command, is_expected=bool(settings.trusted_proxies))


def _assess_proxy(forwarding: str, command: str, *, is_expected: bool) -> Finding:
    """Return the finding about proxies: whether `X-Forwarded-For` arrived, and was trusted or ignored."""
    match forwarding:
        case Forwarding.TRUSTED:
            return Finding(Level.OK, "proxy", "X-Forwarded-For arrives and is trusted")
        case Forwarding.IGNORED:
            text = (
                "X-Forwarded-For arrives, but its sender is not in trusted-proxies: all clients share a limit"
            )
            return Finding(Level.WARN, "proxy", text, "meshfleet serve --trusted-proxies LIST")
        case _ if is_expected:
            text = "trusted-proxies is set, but no X-Forwarded-For arrives through public-url"
            return Finding(Level.WARN, "proxy", text, command)
        case _:
            return Finding(Level.OK, "proxy", "none: no X-Forwarded-For arrives")


def _describe_network_error(exc: Exception) -> str:
    if isinstance(exc, ssl.SSLCertVerificationError):
        return exc.verify_message
    return describe_error(exc)


def _request_readiness(url: str, own_certificate: Path | None) -> tuple[str | None, str | None]:
    """Request `/readyz`. Return why the service is not ready, and how `X-Forwarded-For` was treated.

    The first text is None if the service is ready. The second is None if the response does not say it.
    """
    parts = urlsplit(url)
    host = parts.hostname or ""
    connection = HTTPConnection(host, parts.port, timeout=_TIMEOUT_SECONDS)
    if parts.scheme == "https":
        context = ssl.create_default_context()
        if own_certificate is not None:  # its authority may be a private one that only gateways know
            context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
            context.load_verify_locations(own_certificate)
        connection = HTTPSConnection(host, parts.port, timeout=_TIMEOUT_SECONDS, context=context)
    with closing(connection):
        connection.request("GET", parts.path.rstrip("/") + READINESS_PATH)
        response = connection.getresponse()
        body = response.read(_MAX_BODY_BYTES)
    forwarding = response.headers.get(FORWARDING_HEADER)
    if response.status == HTTPStatus.OK:
        return None, forwarding
    try:
        codes = [reason.code for reason in get_decoder(NotReady).decode(body).reasons]
    except msgspec.MsgspecError:
        return f"responds with HTTP status {response.status}, not as a Meshfleet service", None
    return f"is not ready: {', '.join(codes)}", forwarding


def check_broker(settings: Settings) -> Iterator[Finding]:
    """Check that the external broker accepts the login of the service. Use another MQTT client id."""
    address = settings.external_broker
    if address is None:
        listeners = (settings.mqtt, settings.mqtt_tls, settings.mqtt_ws)
        yield Finding(Level.OK, "broker", "embedded" if any(listeners) else "embedded, no listener")
        return
    try:
        asyncio.run(_log_in_to_broker(settings))
    except MqttError as exc:
        text = str(exc) if str(address) in str(exc) else f"{address}: {exc}"
        yield Finding(Level.FAIL, "broker", text, "meshfleet broker-config mosquitto --help")
    else:
        yield Finding(Level.OK, "broker", f"{address} accepts the login")


def check_influx(settings: Settings) -> Iterator[Finding]:
    """Check that InfluxDB responds and accepts the login."""
    if settings.influx.url is None:
        return
    target = InfluxTarget(settings.influx)
    try:
        target.check()
    except TargetUnavailable as exc:
        yield Finding(
            Level.FAIL, "influx", f"{settings.influx.url} {exc}", f"curl -i {settings.influx.url}/ping"
        )
    else:
        yield Finding(Level.OK, "influx", f"{settings.influx.url} accepts samples")
    finally:
        target.close()


def check_homeassistant(settings: Settings) -> Iterator[Finding]:
    """Check that the broker of Home Assistant accepts the login of the service."""
    address = settings.homeassistant.broker
    if not isinstance(address, BrokerAddress):
        yield Finding(Level.OK, "homeassistant", "off" if address is None else "uses the embedded broker")
        return
    try:
        asyncio.run(check_login(address, settings.homeassistant.broker_ca))
    except MqttError as exc:
        text = str(exc) if str(address) in str(exc) else f"{address}: {exc}"
        yield Finding(Level.FAIL, "homeassistant", text, "meshfleet homeassistant setup --help")
    else:
        yield Finding(Level.OK, "homeassistant", f"{address} accepts the login")


async def _log_in_to_broker(settings: Settings) -> None:
    options = replace(build_link_options(settings), retry_first_connect=False, timeout=_TIMEOUT_SECONDS)
    assert settings.external_broker is not None  # noqa: S101 # checked by the caller
    client_id = f"meshfleet{secrets.token_hex(7)}"
    async with MqttClient(settings.external_broker, client_id, clean=True, options=options):
        pass
