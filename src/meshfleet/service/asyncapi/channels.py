"""The channels: one for each kind of report, each operation there and back, and the diagnostics."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from meshfleet.service.asyncapi import messages
from meshfleet.service.asyncapi.access import access_to, in_words
from meshfleet.service.asyncapi.examples import DEVICE, GATEWAY
from meshfleet.service.asyncapi.parameters import identifier_of
from meshfleet.wire import diagnostics
from meshfleet.wire.codes import Kind, Operation
from meshfleet.wire.ids import Identifier, Mac
from meshfleet.wire.topics import (
    AnyIdentifier,
    BroadcastTopic,
    ReportTopic,
    RequestTopic,
    ResponseTopic,
    Topic,
    Topics,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from meshfleet.service.asyncapi.messages import Message


class _Sort(NamedTuple):
    """What is common to the channels of one sort."""

    name: str
    about: str
    device: str = "device"
    """The description of the level with the device."""


_REPORT: Final = _Sort(
    "report", "Gateways report here what they hear of their devices, and tell of themselves."
)
_REQUEST: Final = _Sort(
    "request", "One gateway is asked here. Nobody else reads that: requests may carry keys."
)
_REQUEST_TO_ALL: Final = _Sort(
    "request-to-all",
    "All gateways are asked here. Each that knows the device answers, on its own topic.",
    "deviceOrEveryGateway",
)
_RESPONSE: Final = _Sort("response", "A gateway answers here. The topic ends like the one of the request.")

_Spell = Callable[[Mac, Mac, AnyIdentifier | None], Topic]
"""Makes a topic of a gateway, a device and perhaps an identifier."""


class Channel(NamedTuple):
    """Where messages of one sort travel."""

    name: str
    about: str
    address: str
    parameters: dict[str, str]
    """The variable levels, and the description of each."""
    topic: str
    """One of the gateway of the examples."""
    message: Message

    def described(self, prefix: str) -> dict[str, Any]:
        """Describe it, below the topic prefix of the installation."""
        access = access_to(self.topic, prefix)
        gateway = "the gateway itself" if "gateway" in self.parameters else "all gateways"
        return {
            "address": self.address,
            "title": self.name.replace("-", " ").capitalize(),
            "description": f"{self.about} {in_words(access, gateway)}",
            "messages": {self.message.name: {"$ref": f"#/components/messages/{self.message.name}"}},
            "parameters": {
                level: {"$ref": f"#/components/parameters/{name}"} for level, name in self.parameters.items()
            },
            "tags": [{"name": self.message.tag}],
            "x-access": access,
        }


def report(kind: Kind, prefix: str) -> Channel:
    """Where gateways report something of a kind."""

    def spell(gateway: Mac, device: Mac, identifier: AnyIdentifier | None) -> Topic:
        return ReportTopic(gateway, device, kind, identifier)

    return _channel(_REPORT, kind, messages.report(kind), spell, prefix)


def request(operation: Operation, prefix: str) -> Channel:
    """Where one gateway is asked."""

    def spell(gateway: Mac, device: Mac, identifier: AnyIdentifier | None) -> Topic:
        return RequestTopic(gateway, device, operation, identifier)

    return _channel(_REQUEST, operation, messages.request(operation), spell, prefix)


def request_to_all(operation: Operation, prefix: str) -> Channel:
    """Where all gateways are asked."""

    def spell(_: Mac, device: Mac, identifier: AnyIdentifier | None) -> Topic:
        return BroadcastTopic(device, operation, identifier)

    return _channel(_REQUEST_TO_ALL, operation, messages.request(operation), spell, prefix)


def response(operation: Operation, prefix: str) -> Channel:
    """Where a gateway answers."""

    def spell(gateway: Mac, device: Mac, identifier: AnyIdentifier | None) -> Topic:
        return ResponseTopic(gateway, device, operation, identifier)

    return _channel(_RESPONSE, operation, messages.response(operation), spell, prefix)


def question() -> Channel:
    """Where a gateway asks for firmware; no topic prefix is in front of it (topic-9)."""
    about = "A gateway asks here for the firmware that it is to use."
    return _diagnostics(messages.question(), diagnostics.question_topic, about)


def answer() -> Channel:
    """Where it is answered."""
    about = "A gateway is told here where the image is."
    return _diagnostics(messages.answer(), diagnostics.answer_topic, about)


def all_channels(prefix: str) -> Iterator[Channel]:
    """Every channel there is."""
    yield from (report(kind, prefix) for kind in Kind)
    yield from (request(operation, prefix) for operation in Operation)
    yield from (request_to_all(operation, prefix) for operation in Operation)
    yield from (response(operation, prefix) for operation in Operation if operation.is_answered)
    yield question()
    yield answer()


def _channel(sort: _Sort, word: Kind | Operation, message: Message, spell: _Spell, prefix: str) -> Channel:
    """Make a channel of the topics that `spell` makes; words in braces make the address."""
    parameters = {"gateway": "gateway", "device": sort.device}
    variable: Identifier | None = None
    if word.has_identifier:
        level = "name" if word.decoded else "identifier"
        parameters[level] = identifier_of(word)
        variable = Identifier(f"{{{level}}}")
    topics = Topics(prefix)
    address = spell(Mac("{gateway}"), Mac("{device}"), variable)
    return Channel(
        f"{sort.name}-{word}",
        sort.about,
        topics.spell(address),
        {level: name for level, name in parameters.items() if f"{{{level}}}" in str(address)},
        topics.spell(spell(GATEWAY, DEVICE, variable)),
        message,
    )


def _diagnostics(message: Message, spell: Callable[[Mac], str], about: str) -> Channel:
    address = spell(Mac("{gateway}"))
    return Channel(message.name, about, address, {"gateway": "gateway"}, spell(GATEWAY), message)
