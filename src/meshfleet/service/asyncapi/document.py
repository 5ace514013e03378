"""The whole document, AsyncAPI 3.0 (rest-162)."""

from __future__ import annotations

from functools import cache
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from meshfleet.protocol.api_versions import ASSUMED_VERSION, LATEST_VERSION
from meshfleet.protocol.codes import Kind, Operation
from meshfleet.protocol.payload import MAX_PAYLOAD_BYTES
from meshfleet.service.asyncapi import channels
from meshfleet.service.asyncapi.channels import build_parameters, iter_channels
from meshfleet.service.asyncapi.messages import CORRELATION_ID, iter_messages

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from meshfleet.service.asyncapi.channels import ChannelDescription
    from meshfleet.settings import ListenAddress, Settings


# The operations: what the service sends and receives, and which answer belongs to what.

_BINDINGS: Final = {"mqtt": {"qos": 1, "retain": False, "bindingVersion": "0.2.0"}}

_ACKNOWLEDGED: Final = (
    "The embedded broker acknowledges a report (PUBACK) when the database has committed it. "
    "What cannot be read is acknowledged all the same, and kept with the reason at `/api/v1/rejects`."
)
_ANSWERED: Final = (
    "The response comes on the topic with the same device, operation and identifier, and has the `id` "
    "of the request."
)
_BY_EACH: Final = "Each gateway that knows the device answers, with the `id` of the request."
_NOT_ANSWERED: Final = "It is not answered; a gateway too old for it answers with status 3."


def build_operations(prefix: str) -> dict[str, dict[str, Any]]:
    """Describe everything that the service does, below the topic prefix of the installation."""
    return dict(_iter_operations(prefix))


def _iter_operations(prefix: str) -> Iterator[tuple[str, dict[str, Any]]]:
    for kind in Kind:
        yield (
            f"receive-{kind}",
            _build_operation("receive", channels.build_report_channel(kind, prefix), _ACKNOWLEDGED),
        )
    for operation in Operation:
        reply = channels.build_response_channel(operation, prefix) if operation.is_answered else None
        for name, channel, about in (
            (f"send-{operation}", channels.build_request_channel(operation, prefix), _ANSWERED),
            (f"send-{operation}-to-all", channels.build_broadcast_channel(operation, prefix), _BY_EACH),
        ):
            yield name, _build_operation("send", channel, about if reply else _NOT_ANSWERED, reply)
    question, answer = channels.build_firmware_question_channel(), channels.build_firmware_answer_channel()
    yield (
        f"receive-{question.name}",
        _build_operation("receive", question, "The answer has the same `id`.", answer),
    )


def _build_operation(
    action: Literal["send", "receive"],
    channel: ChannelDescription,
    about: str,
    reply: ChannelDescription | None = None,
) -> dict[str, Any]:
    return {
        "action": action,
        "channel": _channel_reference(channel),
        "title": f"{action} {channel.name}".replace("-", " ").capitalize(),
        "summary": channel.message.to_dict()["summary"],
        "description": about,
        "tags": [{"name": channel.message.tag}],
        "bindings": _BINDINGS,
        "messages": [_message_reference(channel)],
        **(
            {"reply": {"channel": _channel_reference(reply), "messages": [_message_reference(reply)]}}
            if reply
            else {}
        ),
    }


def _channel_reference(channel: ChannelDescription) -> dict[str, str]:
    return {"$ref": f"#/channels/{channel.name}"}


def _message_reference(channel: ChannelDescription) -> dict[str, str]:
    return {"$ref": f"#/channels/{channel.name}/messages/{channel.message.name}"}


# Where MQTT is spoken.

SECURITY_SCHEME: Final = "account"

_HOST: Final = "localhost"
_ALL_ADDRESSES: Final = frozenset({"0.0.0.0", "::"})  # noqa: S104 # compared with, not bound to
_WEBSOCKET_PATH: Final = "/mqtt"


class ServerDescription(NamedTuple):
    """A place where MQTT clients connect."""

    name: str
    host: str
    """With the port."""
    protocol: str
    description: str
    path: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Describe it."""
        return {
            "host": self.host,
            **({"pathname": self.path} if self.path else {}),
            "protocol": self.protocol,
            "protocolVersion": "3.1.1",
            "description": self.description,
            "security": [{"$ref": f"#/components/securitySchemes/{SECURITY_SCHEME}"}],
        }


DEFAULT_SERVERS: Final = (
    ServerDescription("mqtt", f"{_HOST}:1883", "mqtt", "A service as it listens unless told otherwise."),
)
"""For a document of no installation."""


def list_servers(settings: Settings, host: str | None = None) -> tuple[ServerDescription, ...]:
    """Where clients of this installation connect; `reached` is the host at which somebody found it."""
    if settings.public_mqtt is not None or settings.external_broker is not None:
        return _list_public_servers(settings)
    tls = settings.tls_cert is not None
    wanted = (
        (settings.mqtt, "mqtt", "mqtt", "MQTT over TCP.", None),
        (settings.mqtt_tls, "mqtt-tls", "secure-mqtt", "MQTT over TLS.", None),
        (
            settings.mqtt_ws,
            "mqtt-ws",
            "wss" if tls else "ws",
            "MQTT in WebSockets, subprotocol `mqtt`.",
            _WEBSOCKET_PATH,
        ),
    )
    return tuple(
        ServerDescription(name, _format_host(listen, host or _HOST), protocol, about, path)
        for listen, name, protocol, about, path in wanted
        if listen is not None
    )


def _list_public_servers(settings: Settings) -> tuple[ServerDescription, ...]:
    """What is told to gateways, too (rest-168)."""
    if (place := settings.gateway_broker) is None:
        return ()
    host = f"[{place.host}]" if ":" in place.host else place.host
    about = "Where gateways are told to connect."
    return (ServerDescription("mqtt", f"{host}:{place.port}", "secure-mqtt" if place.tls else "mqtt", about),)


def _format_host(listen: ListenAddress, reached: str) -> str:
    """Nobody can connect to the address that stands for all of them; then it is where we were found."""
    return str(listen._replace(host=reached) if listen.host in _ALL_ADDRESSES else listen)


_DESCRIPTION: Final = f"""\
Fleets of BLE-mesh devices behind MQTT gateways: what gateways report, are asked, and answer.

**Whose side.** Operations are told from the side of the service: it *receives* reports and *sends* requests,
whose responses are their replies. People and programs with an account stand on the same side, each as far as
its role goes. Gateways stand on the other side and do the opposite.

**MQTT.** Version 3.1.1, QoS 1, nothing retained. Payloads are JSON objects in UTF-8 of at most
{MAX_PAYLOAD_BYTES} bytes. The schemas tell what is sent; what readers tolerate beyond that is in the \
descriptions.
Ignore fields that you do not know: later versions may bring more.

**Versions.** Gateways speak {ASSUMED_VERSION} to {LATEST_VERSION}, which `apiversion` tells. `x-since` is \
the version that
brought a field or an operation; what has none has always been there.

**Who may do what.** A gateway logs in with its MAC as user name and as client id, a person with name and
password, a program as `apikey` with its API key. `x-access` of a channel tells who may publish there and who
may read. A forbidden publish ends the connection, a forbidden subscription is refused with 0x80. All this is
so on the embedded broker; another one has rules of its own.
"""

_TAGS: Final = {
    "reports": "What gateways publish of devices, and of themselves.",
    "requests": "What gateways are asked, one or all of them.",
    "responses": "What gateways answer.",
    "diagnostics": "How gateways get firmware images. No topic prefix is in front of these topics.",
}


def build_asyncapi_document(
    servers: Iterable[ServerDescription] = DEFAULT_SERVERS, prefix: str = ""
) -> dict[str, Any]:
    """Describe the messaging interface; whoever gets the document must leave it as it is."""
    return _build_without_servers(prefix) | {"servers": {each.name: each.to_dict() for each in servers}}


@cache
def _build_without_servers(prefix: str) -> dict[str, Any]:
    """Make all that is the same however a service is reached; a process has one prefix."""
    found = list(iter_messages())
    return {
        "asyncapi": "3.0.0",
        "info": {
            "title": "Meshfleet messaging",
            "version": version("meshfleet"),
            "description": _DESCRIPTION,
            "license": {"name": "Apache-2.0"},
            "tags": [{"name": name, "description": about} for name, about in _TAGS.items()],
        },
        "defaultContentType": "application/json",
        "servers": {},
        "channels": {each.name: each.to_dict(prefix) for each in iter_channels(prefix)},
        "operations": build_operations(prefix),
        "components": {
            "schemas": {name: schema for each in found for name, schema in each.schemas.items()},
            "messages": {each.name: each.to_dict() for each in found},
            "parameters": build_parameters(),
            "correlationIds": {
                CORRELATION_ID: {
                    "location": "$message.payload#/id",
                    "description": "The `id` of a request, which its response repeats.",
                }
            },
            "securitySchemes": {
                SECURITY_SCHEME: {
                    "type": "userPassword",
                    "description": "Of a gateway its MAC and password, of a person name and password, "
                    "of a program `apikey` and an API key.",
                }
            },
        },
    }


# The messaging interface of one installation.


class MessagingDocument:
    """Describes the messaging of a service with these settings."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def build(self, host: str | None) -> dict[str, Any]:
        """Describe it to somebody who found the service at this host."""
        return build_asyncapi_document(list_servers(self._settings, host), self._settings.topic_prefix)
