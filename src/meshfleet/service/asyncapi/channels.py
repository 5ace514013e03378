"""The channels: one for each kind of report, each operation there and back, and the diagnostics."""

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
from meshfleet.rest import Role
from meshfleet.service.asyncapi import messages
from meshfleet.service.asyncapi.examples import EXAMPLE_DEVICE, EXAMPLE_GATEWAY

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from meshfleet.service.asyncapi.messages import MessageDescription


# Who may publish and read where, by the rules of the embedded broker.

_GATEWAY: Final = "gateway"
_ACCOUNTS: Final = {
    _GATEWAY: Account(kind=AccountKind.GATEWAY, name=EXAMPLE_GATEWAY),
    **{str(role): Account(kind=AccountKind.USER, name=role, role=role) for role in Role},
}


def list_permissions(topic: str, prefix: str) -> dict[str, list[str]]:
    """Tell who may do what with a topic of the gateway of the examples."""
    return {
        "publish": _list_allowed(prefix, lambda access: access.may_publish(topic)),
        "read": _list_allowed(prefix, lambda access: access.may_read(topic)),
    }


def format_permissions(access: dict[str, list[str]], gateway: str) -> str:
    """Tell the same to people; `gateway` is who a gateway is here."""
    words = {deed: ", ".join(_format_account(who, gateway) for who in whom) for deed, whom in access.items()}
    return f"Besides the service may publish here: {words['publish']}; may read: {words['read']}."


def _format_account(who: str, gateway: str) -> str:
    return gateway if who == _GATEWAY else f"{who}s"


def _list_allowed(prefix: str, may: Callable[[TopicPermissions], bool]) -> list[str]:
    return [who for who, account in _ACCOUNTS.items() if may(TopicPermissions(account, prefix))]


# The variable levels of topics: gateways, devices, and what the catalogue knows for each use.

ADDRESS_PARAMETERS: Final[Mapping[str, dict[str, Any]]] = {
    "gateway": {
        "description": "The MAC of the gateway: 12 lower-case hex digits.",
        "examples": [EXAMPLE_GATEWAY],
    },
    "device": {
        "description": "The MAC of the device: 12 lower-case hex digits. A gateway is a device too.",
        "examples": [EXAMPLE_DEVICE, EXAMPLE_GATEWAY],
    },
    "deviceOrEveryGateway": {
        "description": "The MAC of the device: 12 lower-case hex digits. "
        f"`{EVERY_GATEWAY}` is each gateway itself.",
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


def get_identifier_parameter(word: Kind | Operation) -> str:
    """The name of the parameter that stands behind a kind or an operation."""
    return f"{_USE_BY_KIND[word]}{'Name' if word.is_decoded else 'Identifier'}"


def build_parameters() -> dict[str, dict[str, Any]]:
    """Describe all of them."""
    described = dict(ADDRESS_PARAMETERS)
    for use, fits in _USES.items():
        known = sorted(filter(fits, BUILTIN_CATALOGUE), key=lambda entry: entry.id)
        described[f"{use}Identifier"] = _build_identifier_parameter(known)
        described[f"{use}Name"] = _build_name_parameter(
            [entry for entry in known if entry.layout is not None]
        )
    return described


def _build_identifier_parameter(known: list[IdentifierDefinition]) -> dict[str, Any]:
    listed = ", ".join(f"`{entry.id}` {entry.name}" for entry in known)
    return {
        "description": f"An identifier: the lower-case hex of its 1 to 4 bytes. Known are {listed}; "
        "devices may have others.",
        "examples": [entry.id for entry in known],
    }


def _build_name_parameter(known: list[IdentifierDefinition]) -> dict[str, Any]:
    listed = ", ".join(f"`{entry.name}`{f' in {entry.unit}' if entry.unit else ''}" for entry in known)
    return {
        "description": f"The name of an identifier. Known are {listed}; gateways may know others.",
        "examples": [entry.name for entry in known],
    }


class _ChannelKind(NamedTuple):
    """What is common to the channels of one sort."""

    name: str
    description: str
    device: str = "device"
    """The description of the level with the device."""


_REPORT: Final = _ChannelKind(
    "report", "Gateways report here what they hear of their devices, and tell of themselves."
)
_REQUEST: Final = _ChannelKind(
    "request", "One gateway is asked here. Nobody else reads that: requests may carry keys."
)
_REQUEST_TO_ALL: Final = _ChannelKind(
    "request-to-all",
    "All gateways are asked here. Each that knows the device answers, on its own topic.",
    "deviceOrEveryGateway",
)
_RESPONSE: Final = _ChannelKind(
    "response", "A gateway answers here. The topic ends like the one of the request."
)

_TopicBuilder = Callable[[Mac, Mac, AnyIdentifier | None], Topic]
"""Makes a topic of a gateway, a device and perhaps an identifier."""


class ChannelDescription(NamedTuple):
    """Where messages of one sort travel."""

    name: str
    description: str
    address: str
    parameters: dict[str, str]
    """The variable levels, and the description of each."""
    topic: str
    """One of the gateway of the examples."""
    message: MessageDescription

    def to_dict(self, prefix: str) -> dict[str, Any]:
        """Describe it, below the topic prefix of the installation."""
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
    """Where gateways report something of a kind."""

    def spell(gateway: Mac, device: Mac, identifier: AnyIdentifier | None) -> Topic:
        return ReportTopic(gateway, device, kind, identifier)

    return _build_channel(_REPORT, kind, messages.build_report_message(kind), spell, prefix)


def build_request_channel(operation: Operation, prefix: str) -> ChannelDescription:
    """Where one gateway is asked."""

    def spell(gateway: Mac, device: Mac, identifier: AnyIdentifier | None) -> Topic:
        return RequestTopic(gateway, device, operation, identifier)

    return _build_channel(_REQUEST, operation, messages.build_request_message(operation), spell, prefix)


def build_broadcast_channel(operation: Operation, prefix: str) -> ChannelDescription:
    """Where all gateways are asked."""

    def spell(_: Mac, device: Mac, identifier: AnyIdentifier | None) -> Topic:
        return BroadcastTopic(device, operation, identifier)

    return _build_channel(
        _REQUEST_TO_ALL, operation, messages.build_request_message(operation), spell, prefix
    )


def build_response_channel(operation: Operation, prefix: str) -> ChannelDescription:
    """Where a gateway answers."""

    def spell(gateway: Mac, device: Mac, identifier: AnyIdentifier | None) -> Topic:
        return ResponseTopic(gateway, device, operation, identifier)

    return _build_channel(_RESPONSE, operation, messages.build_response_message(operation), spell, prefix)


def build_firmware_question_channel() -> ChannelDescription:
    """Where a gateway asks for firmware; no topic prefix is in front of it (topic-9)."""
    about = "A gateway asks here for the firmware that it is to use."
    return _build_diagnostics_channel(
        messages.build_firmware_question_message(), diagnostics.format_question_topic, about
    )


def build_firmware_answer_channel() -> ChannelDescription:
    """Where it is answered."""
    about = "A gateway is told here where the image is."
    return _build_diagnostics_channel(
        messages.build_firmware_answer_message(), diagnostics.format_answer_topic, about
    )


def iter_channels(prefix: str) -> Iterator[ChannelDescription]:
    """Every channel there is."""
    yield from (build_report_channel(kind, prefix) for kind in Kind)
    yield from (build_request_channel(operation, prefix) for operation in Operation)
    yield from (build_broadcast_channel(operation, prefix) for operation in Operation)
    yield from (build_response_channel(operation, prefix) for operation in Operation if operation.is_answered)
    yield build_firmware_question_channel()
    yield build_firmware_answer_channel()


def _build_channel(
    sort: _ChannelKind, word: Kind | Operation, message: MessageDescription, spell: _TopicBuilder, prefix: str
) -> ChannelDescription:
    """Make a channel of the topics that `spell` makes; words in braces make the address."""
    parameters = {"gateway": "gateway", "device": sort.device}
    variable: Identifier | None = None
    if word.has_identifier:
        level = "name" if word.is_decoded else "identifier"
        parameters[level] = get_identifier_parameter(word)
        variable = Identifier(f"{{{level}}}")
    topics = TopicCodec(prefix)
    address = spell(Mac("{gateway}"), Mac("{device}"), variable)
    return ChannelDescription(
        f"{sort.name}-{word}",
        sort.description,
        topics.format_topic(address),
        {level: name for level, name in parameters.items() if f"{{{level}}}" in str(address)},
        topics.format_topic(spell(EXAMPLE_GATEWAY, EXAMPLE_DEVICE, variable)),
        message,
    )


def _build_diagnostics_channel(
    message: MessageDescription, spell: Callable[[Mac], str], about: str
) -> ChannelDescription:
    address = spell(Mac("{gateway}"))
    return ChannelDescription(
        message.name, about, address, {"gateway": "gateway"}, spell(EXAMPLE_GATEWAY), message
    )
