"""Channels of the AsyncAPI document: one per kind of report, request and response, and for diagnostics."""

from __future__ import annotations

from collections.abc import Callable
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
from meshfleet.protocol.topics import (
    AnyIdentifier,
    BroadcastTopic,
    ReportTopic,
    RequestTopic,
    ResponseTopic,
    Topic,
    TopicCodec,
)
from meshfleet.rest.accounts import Role
from meshfleet.service.asyncapi import messages
from meshfleet.service.asyncapi.examples import EXAMPLE_DEVICE, EXAMPLE_GATEWAY

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from meshfleet.service.asyncapi.messages import MessageDescription


# Permissions to publish and subscribe, by the rules of the embedded broker.

_GATEWAY: Final = "gateway"
_ACCOUNTS: Final = {
    _GATEWAY: Account(kind=AccountKind.GATEWAY, name=EXAMPLE_GATEWAY),
    **{str(role): Account(kind=AccountKind.USER, name=role, role=role) for role in Role},
}


def list_permissions(topic: str, prefix: str) -> dict[str, list[str]]:
    """Return which accounts (gateway, or user by role) may publish to and read a topic.

    The topic must be one of the example gateway.
    """
    return {
        "publish": _list_allowed(prefix, lambda access: access.may_publish(topic)),
        "read": _list_allowed(prefix, lambda access: access.may_read(topic)),
    }


def format_permissions(access: dict[str, list[str]], gateway: str) -> str:
    """Return the result of `list_permissions` as a sentence that calls the gateway `gateway`."""
    names = {
        action: ", ".join(_format_account(kind, gateway) for kind in kinds)
        for action, kinds in access.items()
    }
    return f"May publish besides the service: {names['publish']}. May read: {names['read']}."


def _format_account(kind: str, gateway: str) -> str:
    return gateway if kind == _GATEWAY else f"{kind}s"


def _list_allowed(prefix: str, is_allowed: Callable[[TopicPermissions], bool]) -> list[str]:
    return [kind for kind, account in _ACCOUNTS.items() if is_allowed(TopicPermissions(account, prefix))]


# Parameters for variable topic levels: gateways, devices, and the identifiers of the catalogue for each use.

ADDRESS_PARAMETERS: Final[Mapping[str, dict[str, Any]]] = {
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


def _has_kind(*kinds: IdentifierKind) -> Callable[[IdentifierDefinition], bool]:
    return lambda entry: not entry.kinds.isdisjoint(kinds)


def _allows(access: IdentifierAccess) -> Callable[[IdentifierDefinition], bool]:
    return lambda entry: entry.access in {access, IdentifierAccess.READ_WRITE}


_USES: Final[Mapping[str, Callable[[IdentifierDefinition], bool]]] = {
    "property": _has_kind(IdentifierKind.PROPERTY),
    "measurement": _has_kind(IdentifierKind.MEASUREMENT),
    "event": _has_kind(IdentifierKind.EVENT),
    "sample": _has_kind(IdentifierKind.MEASUREMENT, IdentifierKind.EVENT),
    "readable": _allows(IdentifierAccess.READ),
    "writable": _allows(IdentifierAccess.WRITE),
}

_USE_BY_KIND: Final[Mapping[Kind | Operation, str]] = {
    Kind.PROPERTY: "property",
    Kind.PROPERTY_DECODED: "property",
    Kind.MEASUREMENT: "measurement",
    Kind.MEASUREMENT_DECODED: "measurement",
    Kind.MEASUREMENT_ERROR: "measurement",
    Kind.MEASUREMENT_ERROR_DECODED: "measurement",
    Kind.EVENT: "event",
    Kind.EVENT_DECODED: "event",
    Operation.READ: "readable",
    Operation.READ_DECODED: "readable",
    Operation.WRITE: "writable",
    Operation.WRITE_DECODED: "writable",
    Operation.ACK: "sample",
    Operation.ACK_DECODED: "sample",
}


def get_identifier_parameter(code: Kind | Operation) -> str:
    """Return the name of the AsyncAPI parameter for the identifier in topics of a kind or operation."""
    return f"{_USE_BY_KIND[code]}{'Name' if code.is_decoded else 'Identifier'}"


def build_parameters() -> dict[str, dict[str, Any]]:
    """Return the descriptions of all AsyncAPI parameters, by name."""
    parameters = dict(ADDRESS_PARAMETERS)
    for use, is_usable in _USES.items():
        known = sorted(filter(is_usable, BUILTIN_CATALOGUE), key=lambda entry: entry.id)
        parameters[f"{use}Identifier"] = _build_identifier_parameter(known)
        parameters[f"{use}Name"] = _build_name_parameter(
            [entry for entry in known if entry.layout is not None]
        )
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


class _ChannelKind(NamedTuple):
    """Properties that all channels of reports, of requests, or of responses have in common."""

    name: str
    description: str
    device: str = "device"
    """Name of the AsyncAPI parameter for the topic level of the device."""


_REPORT: Final = _ChannelKind("report", "Gateways publish reports of their devices and of themselves here.")
_REQUEST: Final = _ChannelKind(
    "request", "Requests to one gateway. Other accounts cannot read them, because requests may carry keys."
)
_REQUEST_TO_ALL: Final = _ChannelKind(
    "request-to-all",
    "Requests to all gateways. Each gateway that knows the device responds, on its own topic.",
    "deviceOrEveryGateway",
)
_RESPONSE: Final = _ChannelKind(
    "response", "Responses of a gateway. The topic ends like the topic of the request."
)

_TopicBuilder = Callable[[Mac, Mac, AnyIdentifier | None], Topic]
"""Function that builds a topic from a gateway, a device and optionally an identifier."""


class ChannelDescription(NamedTuple):
    """Channel of the AsyncAPI document: a topic pattern and its message."""

    name: str
    description: str
    address: str
    parameters: dict[str, str]
    """Names of the AsyncAPI parameters, by variable topic level."""
    topic: str
    """Topic of the example gateway, from which the permissions are determined."""
    message: MessageDescription

    def to_dict(self, prefix: str) -> dict[str, Any]:
        """Return the AsyncAPI channel object, for the topic prefix of the installation."""
        access = list_permissions(self.topic, prefix)
        gateway = "the gateway itself" if "gateway" in self.parameters else "all gateways"
        return {
            "address": self.address,
            "title": self.name.replace("-", " ").capitalize(),
            "description": f"{self.description} {format_permissions(access, gateway)}",
            "messages": {self.message.name: {"$ref": f"#/components/messages/{self.message.name}"}},
            "parameters": {
                level: {"$ref": f"#/components/parameters/{name}"} for level, name in self.parameters.items()
            },
            "tags": [{"name": self.message.tag}],
            "x-access": access,
        }


def build_report_channel(kind: Kind, prefix: str) -> ChannelDescription:
    """Return the channel of a kind of report."""

    def build_topic(gateway: Mac, device: Mac, identifier: AnyIdentifier | None) -> Topic:
        return ReportTopic(gateway, device, kind, identifier)

    return _build_channel(_REPORT, kind, messages.build_report_message(kind), build_topic, prefix)


def build_request_channel(operation: Operation, prefix: str) -> ChannelDescription:
    """Return the channel of requests of one operation to one gateway."""

    def build_topic(gateway: Mac, device: Mac, identifier: AnyIdentifier | None) -> Topic:
        return RequestTopic(gateway, device, operation, identifier)

    return _build_channel(_REQUEST, operation, messages.build_request_message(operation), build_topic, prefix)


def build_broadcast_channel(operation: Operation, prefix: str) -> ChannelDescription:
    """Return the channel of requests of one operation to all gateways."""

    def build_topic(_: Mac, device: Mac, identifier: AnyIdentifier | None) -> Topic:
        return BroadcastTopic(device, operation, identifier)

    return _build_channel(
        _REQUEST_TO_ALL, operation, messages.build_request_message(operation), build_topic, prefix
    )


def build_response_channel(operation: Operation, prefix: str) -> ChannelDescription:
    """Return the channel of responses to requests of one operation."""

    def build_topic(gateway: Mac, device: Mac, identifier: AnyIdentifier | None) -> Topic:
        return ResponseTopic(gateway, device, operation, identifier)

    return _build_channel(
        _RESPONSE, operation, messages.build_response_message(operation), build_topic, prefix
    )


def build_firmware_question_channel() -> ChannelDescription:
    """Return the channel on which gateways request firmware. Its topics have no prefix (topic-9)."""
    description = "A gateway requests a firmware image here."
    return _build_diagnostics_channel(
        messages.build_firmware_question_message(), diagnostics.format_question_topic, description
    )


def build_firmware_answer_channel() -> ChannelDescription:
    """Return the channel of the responses to firmware requests of gateways."""
    description = "The service sends the download address of the firmware image here."
    return _build_diagnostics_channel(
        messages.build_firmware_answer_message(), diagnostics.format_answer_topic, description
    )


def iter_channels(prefix: str) -> Iterator[ChannelDescription]:
    """Yield all channels of the document."""
    yield from (build_report_channel(kind, prefix) for kind in Kind)
    yield from (build_request_channel(operation, prefix) for operation in Operation)
    yield from (build_broadcast_channel(operation, prefix) for operation in Operation)
    yield from (build_response_channel(operation, prefix) for operation in Operation if operation.is_answered)
    yield build_firmware_question_channel()
    yield build_firmware_answer_channel()


def _build_channel(
    channel_kind: _ChannelKind,
    code: Kind | Operation,
    message: MessageDescription,
    build_topic: _TopicBuilder,
    prefix: str,
) -> ChannelDescription:
    """Return the channel of a kind of report or of an operation.

    `build_topic` is called with placeholders such as `{gateway}` to get the address of the channel.
    """
    parameters = {"gateway": "gateway", "device": channel_kind.device}
    variable: Identifier | None = None
    if code.has_identifier:
        level = "name" if code.is_decoded else "identifier"
        parameters[level] = get_identifier_parameter(code)
        variable = Identifier(f"{{{level}}}")
    topics = TopicCodec(prefix)
    address = build_topic(Mac("{gateway}"), Mac("{device}"), variable)
    return ChannelDescription(
        f"{channel_kind.name}-{code}",
        channel_kind.description,
        topics.format_topic(address),
        {level: name for level, name in parameters.items() if f"{{{level}}}" in str(address)},
        topics.format_topic(build_topic(EXAMPLE_GATEWAY, EXAMPLE_DEVICE, variable)),
        message,
    )


def _build_diagnostics_channel(
    message: MessageDescription, build_topic: Callable[[Mac], str], description: str
) -> ChannelDescription:
    address = build_topic(Mac("{gateway}"))
    return ChannelDescription(
        message.name, description, address, {"gateway": "gateway"}, build_topic(EXAMPLE_GATEWAY), message
    )
