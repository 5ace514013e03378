"""Servers and operations of the AsyncAPI 3.0 document, and the complete document (rest-162)."""

from __future__ import annotations

from functools import cache
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from meshfleet.protocol.api_versions import ASSUMED_VERSION, LATEST_VERSION
from meshfleet.protocol.codes import Kind, Operation
from meshfleet.protocol.payload import MAX_PAYLOAD_BYTES
from meshfleet.service.asyncapi.channels import build_parameters, iter_channels
from meshfleet.service.asyncapi.messages import CORRELATION_ID

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from meshfleet.service.asyncapi.channels import ChannelDescription
    from meshfleet.settings import ListenAddress, Settings


# Operations: messages that the service sends and receives, with their replies.

_BINDINGS: Final = {"mqtt": {"qos": 1, "retain": False, "bindingVersion": "0.2.0"}}

_ACKNOWLEDGED: Final = (
    "The embedded broker acknowledges a report (PUBACK) when the database has committed it. "
    "An invalid report is acknowledged too, and listed with the reason at `/api/v1/rejects`."
)
_ANSWERED: Final = (
    "The response arrives on the topic with the same device, operation and identifier, and has the `id` "
    "of the request."
)
_BY_EACH: Final = "Each gateway that knows the device responds, with the `id` of the request."
_NOT_ANSWERED: Final = "There is no response; a gateway too old for this operation responds with status 3."


def _iter_operations(channels: Mapping[str, ChannelDescription]) -> Iterator[tuple[str, dict[str, Any]]]:
    for kind in Kind:
        yield f"receive-{kind}", _build_operation("receive", channels[f"report-{kind}"], _ACKNOWLEDGED)
    for operation in Operation:
        reply = channels.get(f"response-{operation}")
        request, broadcast = channels[f"request-{operation}"], channels[f"request-to-all-{operation}"]
        text, text_to_all = (_ANSWERED, _BY_EACH) if reply else (_NOT_ANSWERED, _NOT_ANSWERED)
        yield f"send-{operation}", _build_operation("send", request, text, reply)
        yield f"send-{operation}-to-all", _build_operation("send", broadcast, text_to_all, reply)
    image_request, image_response = channels["firmware-question"], channels["firmware-answer"]
    text = "The response has the same `id`."
    yield (
        f"receive-{image_request.name}",
        _build_operation("receive", image_request, text, image_response),
    )


def _build_operation(
    action: Literal["send", "receive"],
    channel: ChannelDescription,
    description: str,
    reply: ChannelDescription | None = None,
) -> dict[str, Any]:
    references = _build_references(channel)
    operation: dict[str, Any] = {
        "action": action,
        "channel": references["channel"],
        "title": f"{action} {channel.name}".replace("-", " ").capitalize(),
        "summary": channel.message.summary,
        "description": description,
        "tags": [{"name": channel.message.tag}],
        "bindings": _BINDINGS,
        "messages": references["messages"],
    }
    return operation | ({"reply": _build_references(reply)} if reply else {})


def _build_references(channel: ChannelDescription) -> dict[str, Any]:
    reference = f"#/channels/{channel.name}"
    return {
        "channel": {"$ref": reference},
        "messages": [{"$ref": f"{reference}/messages/{channel.message.name}"}],
    }


# MQTT servers.

SECURITY_SCHEME: Final = "account"

_HOST: Final = "localhost"
_ALL_ADDRESSES: Final = frozenset({"0.0.0.0", "::"})  # noqa: S104 # compared with, not bound to
_WEBSOCKET_PATH: Final = "/mqtt"


class ServerDescription(NamedTuple):
    """Server in the AsyncAPI document: an address to which MQTT clients connect."""

    name: str
    host: str
    """Host and port, separated by a colon."""
    protocol: str
    description: str
    path: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the AsyncAPI server object."""
        return {
            "host": self.host,
            **({"pathname": self.path} if self.path else {}),
            "protocol": self.protocol,
            "protocolVersion": "3.1.1",
            "description": self.description,
            "security": [{"$ref": f"#/components/securitySchemes/{SECURITY_SCHEME}"}],
        }


DEFAULT_SERVERS: Final = (
    ServerDescription("mqtt", f"{_HOST}:1883", "mqtt", "A service with default settings."),
)
"""Servers of an AsyncAPI document that describes no particular installation."""


def list_servers(settings: Settings, host: str | None = None) -> tuple[ServerDescription, ...]:
    """Return the MQTT servers of this installation for the AsyncAPI document.

    `host` is the host name under which the REST client reached the service; it replaces wildcard addresses.
    """
    if settings.public_mqtt is not None or settings.external_broker is not None:
        return _list_public_servers(settings)
    has_tls = settings.tls_cert is not None
    configured = (
        (settings.mqtt, "mqtt", "mqtt", "MQTT over TCP.", None),
        (settings.mqtt_tls, "mqtt-tls", "secure-mqtt", "MQTT over TLS.", None),
        (
            settings.mqtt_ws,
            "mqtt-ws",
            "wss" if has_tls else "ws",
            "MQTT over WebSocket, subprotocol `mqtt`.",
            _WEBSOCKET_PATH,
        ),
    )
    return tuple(
        ServerDescription(name, _format_host(listen, host or _HOST), protocol, description, path)
        for listen, name, protocol, description, path in configured
        if listen is not None
    )


def _list_public_servers(settings: Settings) -> tuple[ServerDescription, ...]:
    """Return a single MQTT server: the broker at the address that gateways use (rest-168)."""
    if (address := settings.gateway_broker) is None:
        return ()
    host = f"[{address.host}]" if ":" in address.host else address.host
    protocol = "secure-mqtt" if address.tls else "mqtt"
    return (ServerDescription("mqtt", f"{host}:{address.port}", protocol, "The broker for gateways."),)


def _format_host(listen: ListenAddress, host: str) -> str:
    """Return host and port of an MQTT listener. A wildcard address is replaced by `host`."""
    return str(listen._replace(host=host) if listen.host in _ALL_ADDRESSES else listen)


_DESCRIPTION: Final = f"""\
MQTT messages of fleets of BLE-mesh devices behind gateways: reports, requests and responses.

**Point of view.** Operations are described from the side of the service: it *receives* reports and *sends*
requests, whose replies are the responses. Users and programs with an account are on the same side, within the
limits of their roles. Gateways are on the other side and do the opposite.

**MQTT.** Version 3.1.1, QoS 1, no retained messages. Payloads are JSON objects in UTF-8 of at most
{MAX_PAYLOAD_BYTES} bytes. The schemas describe the form that is sent; the descriptions name other \
accepted forms.
Ignore fields that you do not know: later versions may add more.

**Versions.** Gateways support a version from {ASSUMED_VERSION} to {LATEST_VERSION}, which `apiversion` \
returns.
`x-since` is the version that added a field or an operation; without it, it has always existed.

**Permissions.** A gateway logs in with its MAC as user name and client id, a user with name and password, a
program as `apikey` with its API key. `x-access` of a channel lists the kinds of accounts that may publish and
read there. A forbidden publish closes the connection, a forbidden subscription is refused with 0x80. This
applies to the embedded broker; an external broker has rules of its own.
"""

_TAGS: Final = {
    "reports": "Messages that gateways publish about devices and about themselves.",
    "requests": "Requests to one gateway or to all gateways.",
    "responses": "Responses of gateways to requests.",
    "diagnostics": "Firmware images for gateways. These topics have no topic prefix.",
}


def build_asyncapi_document(
    servers: Iterable[ServerDescription] = DEFAULT_SERVERS, prefix: str = ""
) -> dict[str, Any]:
    """Return the AsyncAPI document. Do not modify the result: parts of the document are cached."""
    return _build_without_servers(prefix) | {"servers": {each.name: each.to_dict() for each in servers}}


@cache
def _build_without_servers(prefix: str) -> dict[str, Any]:
    """Return the AsyncAPI document without servers. The result is cached by topic prefix."""
    channels = {each.name: each for each in iter_channels()}
    messages = {each.message.name: each.message for each in channels.values()}
    return {
        "asyncapi": "3.0.0",
        "info": {
            "title": "Meshfleet messaging",
            "version": version("meshfleet"),
            "description": _DESCRIPTION,
            "license": {"name": "Apache-2.0"},
            "tags": [{"name": name, "description": text} for name, text in _TAGS.items()],
        },
        "defaultContentType": "application/json",
        "servers": {},
        "channels": {name: each.to_dict(prefix) for name, each in channels.items()},
        "operations": dict(_iter_operations(channels)),
        "components": {
            "schemas": {name: schema for each in messages.values() for name, schema in each.schemas.items()},
            "messages": {name: each.to_dict() for name, each in messages.items()},
            "parameters": build_parameters(),
            "correlationIds": {
                CORRELATION_ID: {
                    "location": "$message.payload#/id",
                    "description": "The `id` of a request, which is repeated in its response.",
                }
            },
            "securitySchemes": {
                SECURITY_SCHEME: {
                    "type": "userPassword",
                    "description": "A gateway's MAC and password, a user's name and password, "
                    "or `apikey` and an API key for a program.",
                }
            },
        },
    }


# Document of one installation.


class MessagingDocument:
    """Builds the AsyncAPI document for the settings of a service."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def build(self, host: str | None) -> dict[str, Any]:
        """Return the AsyncAPI document for a REST client that reached the service under `host`."""
        return build_asyncapi_document(list_servers(self._settings, host), self._settings.topic_prefix)
