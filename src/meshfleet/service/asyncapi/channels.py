"""Channels of the AsyncAPI document: one per kind of report, request and response, and for diagnostics."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from meshfleet.mqtt.broker import Account, AccountKind, TopicPermissions
from meshfleet.protocol import diagnostics
from meshfleet.protocol.codes import Kind, Operation
from meshfleet.protocol.identifiers import (
    BUILTIN_CATALOGUE,
    IdentifierAccess,
    IdentifierDefinition,
    IdentifierKind,
)
from meshfleet.protocol.ids import EVERY_GATEWAY, Identifier, Mac
from meshfleet.protocol.topics import BroadcastTopic, ReportTopic, RequestTopic, ResponseTopic, Topic
from meshfleet.rest.accounts import Role
from meshfleet.service.asyncapi import examples, messages
from meshfleet.service.asyncapi.examples import EXAMPLE_DEVICE, EXAMPLE_GATEWAY

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from meshfleet.service.asyncapi.messages import MessageDescription


# Permissions to publish and subscribe, by the rules of the embedded broker.

_GATEWAY: Final = "gateway"
_ACCOUNTS: Final = {
    _GATEWAY: Account(kind=AccountKind.GATEWAY, name=EXAMPLE_GATEWAY),
    **{str(role): Account(kind=AccountKind.USER, name=role, role=role) for role in Role},
}


def _describe_permissions(topic: str, prefix: str) -> dict[str, list[str]]:
    """Return who may publish to a topic and who may read it: gateways, and users by role."""
    access = {kind: TopicPermissions(account, prefix) for kind, account in _ACCOUNTS.items()}
    return {
        "publish": [kind for kind, each in access.items() if each.may_publish(topic)],
        "read": [kind for kind, each in access.items() if each.may_read(topic)],
    }


# Parameters for variable topic levels: gateways, devices, and the identifiers of the catalogue for each use.

_ADDRESS_PARAMETERS: Final[Mapping[str, dict[str, Any]]] = {
    "gateway": {
        "description": "The MAC of the gateway: 12 lower-case hex digits.",
        "examples": [EXAMPLE_GATEWAY],
    },
    "device": {
        "description": "The MAC of the device: 12 lower-case hex digits. A gateway is also a device.",
        "examples": [EXAMPLE_DEVICE, EXAMPLE_GATEWAY],
    },
    "deviceOrEveryGateway": {
        "description": "The MAC of the device: 12 lower-case hex digits. "
        f"`{EVERY_GATEWAY}` addresses every gateway itself.",
        "examples": [EXAMPLE_DEVICE, EVERY_GATEWAY],
    },
}


_USES: Final[Mapping[str, Callable[[IdentifierDefinition], bool]]] = {
    "property": lambda entry: IdentifierKind.PROPERTY in entry.kinds,
    "measurement": lambda entry: IdentifierKind.MEASUREMENT in entry.kinds,
    "event": lambda entry: IdentifierKind.EVENT in entry.kinds,
    "sample": lambda entry: bool(entry.kinds & {IdentifierKind.MEASUREMENT, IdentifierKind.EVENT}),
    "readable": lambda entry: entry.access in {IdentifierAccess.READ, IdentifierAccess.READ_WRITE},
    "writable": lambda entry: entry.access in {IdentifierAccess.WRITE, IdentifierAccess.READ_WRITE},
}
"""Uses of identifiers in topics, each with a function that returns whether a catalogue entry has this use."""

_OPERATION_USES: Final = {"read": "readable", "write": "writable", "ack": "sample"}


def build_parameters() -> dict[str, dict[str, Any]]:
    """Return the AsyncAPI descriptions of all topic parameters, by name."""
    parameters = dict(_ADDRESS_PARAMETERS)
    for use, is_usable in _USES.items():
        known = sorted(filter(is_usable, BUILTIN_CATALOGUE), key=lambda entry: entry.id)
        parameters[f"{use}Identifier"] = _build_identifier_parameter(known)
        parameters[f"{use}Name"] = _build_name_parameter([each for each in known if each.layout is not None])
    return parameters


def _build_identifier_parameter(known: list[IdentifierDefinition]) -> dict[str, Any]:
    listed = ", ".join(f"`{entry.id}` {entry.name}" for entry in known)
    return {
        "description": f"An identifier: 1 to 4 bytes as lower-case hex. Known identifiers: {listed}; "
        "devices may have others.",
        "examples": [entry.id for entry in known],
    }


def _build_name_parameter(known: list[IdentifierDefinition]) -> dict[str, Any]:
    listed = ", ".join(f"`{entry.name}`{f' in {entry.unit}' if entry.unit else ''}" for entry in known)
    return {
        "description": f"The name of an identifier. Known names: {listed}; gateways may know others.",
        "examples": [entry.name for entry in known],
    }


_GATEWAY_PARAMETER: Final = Mac("{gateway}")
_DEVICE_PARAMETER: Final = Mac("{device}")


class ChannelDescription(NamedTuple):
    """Channel of the AsyncAPI document: a topic pattern and its message."""

    name: str
    description: str
    topic: str
    """Topic without the topic prefix of the installation, with parameters such as `{gateway}`."""
    parameters: Mapping[str, str]
    """Names of AsyncAPI parameters, by the names of the parameters in `topic`."""
    message: MessageDescription
    has_prefix: bool = True
    """Whether the topic begins with the topic prefix of the installation."""

    def to_dict(self, prefix: str) -> dict[str, Any]:
        """Return the AsyncAPI channel object with `prefix` as the topic prefix."""
        start = f"{prefix}/" if prefix and self.has_prefix else ""
        example = self.topic.replace(_GATEWAY_PARAMETER, EXAMPLE_GATEWAY)
        access = _describe_permissions(start + example.replace(_DEVICE_PARAMETER, EXAMPLE_DEVICE), prefix)
        gateway = "the gateway itself" if "gateway" in self.parameters else "all gateways"
        names = {
            action: ", ".join(gateway if kind == _GATEWAY else f"{kind}s" for kind in kinds)
            for action, kinds in access.items()
        }
        return {
            "address": start + self.topic,
            "title": self.name.replace("-", " ").capitalize(),
            "description": f"{self.description} May publish besides the service: {names['publish']}. "
            f"May read: {names['read']}.",
            "messages": {self.message.name: {"$ref": f"#/components/messages/{self.message.name}"}},
            "parameters": {
                level: {"$ref": f"#/components/parameters/{name}"} for level, name in self.parameters.items()
            },
            "tags": [{"name": self.message.tag}],
            "x-access": access,
        }


_DESCRIPTIONS: Final = {
    "report": "Gateways publish reports of their devices and of themselves here.",
    "request": "Requests to one gateway. Other accounts cannot read them, because requests may carry keys.",
    "request-to-all": "Requests to all gateways. "
    "Each gateway that knows the device responds, on its own topic.",
    "response": "Responses of a gateway. The topic ends like the topic of the request.",
}


def iter_channels() -> Iterator[ChannelDescription]:
    """Yield all channels of the AsyncAPI document."""
    gateway, device = _GATEWAY_PARAMETER, _DEVICE_PARAMETER
    for kind in Kind:
        report = ReportTopic(gateway, device, kind, _identifier_parameter(kind))
        yield _build_channel("report", kind, report, messages.build_report_message(kind))
    for operation in Operation:
        request = RequestTopic(gateway, device, operation, _identifier_parameter(operation))
        yield _build_channel("request", operation, request, messages.build_request_message(operation))
    for operation in Operation:
        broadcast = BroadcastTopic(device, operation, _identifier_parameter(operation))
        yield _build_channel(
            "request-to-all", operation, broadcast, messages.build_request_message(operation)
        )
    for operation in examples.RESPONSES:
        response = ResponseTopic(gateway, device, operation, _identifier_parameter(operation))
        yield _build_channel("response", operation, response, messages.build_response_message(operation))
    yield ChannelDescription(
        messages.IMAGE_REQUEST.name,
        "A gateway requests a firmware image here.",
        diagnostics.format_image_request_topic(gateway),
        {"gateway": "gateway"},
        messages.IMAGE_REQUEST,
        has_prefix=False,
    )
    yield ChannelDescription(
        messages.IMAGE_RESPONSE.name,
        "The service sends the download address of the firmware image here.",
        diagnostics.format_image_response_topic(gateway),
        {"gateway": "gateway"},
        messages.IMAGE_RESPONSE,
        has_prefix=False,
    )


def _identifier_parameter(code: Kind | Operation) -> Identifier | None:
    """Return the placeholder of the identifier in the topics of a kind of report, or of an operation."""
    if not code.has_identifier:
        return None
    return Identifier("{name}" if code.is_decoded else "{identifier}")


def _build_channel(
    part: str, code: Kind | Operation, topic: Topic, message: MessageDescription
) -> ChannelDescription:
    word = code.partition("-")[0]
    use = _OPERATION_USES.get(word, word)
    names = {
        "gateway": "gateway",
        "device": "deviceOrEveryGateway" if isinstance(topic, BroadcastTopic) else "device",
        "identifier": f"{use}Identifier",
        "name": f"{use}Name",
    }
    parameters = {level: name for level, name in names.items() if f"{{{level}}}" in str(topic)}
    return ChannelDescription(f"{part}-{code}", _DESCRIPTIONS[part], str(topic), parameters, message)
