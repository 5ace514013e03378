"""Topics, read and spelled in one place.

    mt/gateway/{g}/device/{d}/<kind>[/<identifier>]            a report
    mt/gateway/{g}/request/{d}/<operation>[/<identifier>]      a request to one gateway
    mt/gateways/request/{d}/<operation>[/<identifier>]         a request to all gateways
    mt/gateway/{g}/response/{d}/<operation>[/<identifier>]     a response

The topic types know nothing of a prefix; `Topics` puts it in front and takes it off.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, TypeVar

from msgspec import Struct

from meshfleet.errors import quote_input
from meshfleet.errors.protocol import MalformedIdentifier, MalformedMac, MalformedTopic, WireError
from meshfleet.protocol.codes import Kind, Operation
from meshfleet.protocol.ids import (
    EVERY_GATEWAY,
    Identifier,
    IdentifierName,
    Mac,
    is_identifier,
    parse_identifier,
    parse_identifier_name,
    parse_mac,
)

if TYPE_CHECKING:
    from collections.abc import Container

TOPIC_CACHE_SIZE: Final = 1 << 17
"""Topics that one `Topics` remembers; a gateway repeats its few topics for ever."""

_IDENTIFIER_CACHE_SIZE: Final = 1 << 12
"""There are some dozens of them; this many only if somebody makes them up."""

AnyIdentifier = Identifier | IdentifierName


class ReportTopic(Struct, frozen=True, gc=False):
    """Where a gateway reports something of a device; of itself with device = gateway."""

    gateway: Mac
    device: Mac
    kind: Kind
    identifier: AnyIdentifier | None = None

    def __str__(self) -> str:
        return f"mt/gateway/{self.gateway}/device/{self.device}/{self.kind}{_tail(self.identifier)}"


class RequestTopic(Struct, frozen=True, gc=False):
    """Where a client asks one gateway something about a device; about itself with device = gateway."""

    gateway: Mac
    device: Mac
    operation: Operation
    identifier: AnyIdentifier | None = None

    def to_response_topic(self) -> ResponseTopic:
        """Where the answer is published: the same end (topic-4)."""
        return ResponseTopic(self.gateway, self.device, self.operation, self.identifier)

    def __str__(self) -> str:
        return f"mt/gateway/{self.gateway}/request/{self.device}/{self.operation}{_tail(self.identifier)}"


class BroadcastTopic(Struct, frozen=True, gc=False):
    """Where a client asks all gateways; with device = `EVERY_GATEWAY` each about itself."""

    device: Mac
    operation: Operation
    identifier: AnyIdentifier | None = None

    def to_request_topic(self, gateway: Mac) -> RequestTopic:
        """Give the request as this gateway understands it (topic-11)."""
        device = gateway if self.device == EVERY_GATEWAY else self.device
        return RequestTopic(gateway, device, self.operation, self.identifier)

    def __str__(self) -> str:
        return f"mt/gateways/request/{self.device}/{self.operation}{_tail(self.identifier)}"


class ResponseTopic(Struct, frozen=True, gc=False):
    """Where a gateway answers."""

    gateway: Mac
    device: Mac
    operation: Operation
    identifier: AnyIdentifier | None = None

    def __str__(self) -> str:
        return f"mt/gateway/{self.gateway}/response/{self.device}/{self.operation}{_tail(self.identifier)}"


Topic = ReportTopic | RequestTopic | BroadcastTopic | ResponseTopic


class TopicCodec:
    """The topics below one prefix, read once per distinct topic."""

    def __init__(self, prefix: str = "", *, identifier_names: Container[str] = ()) -> None:
        """`names` are the catalogue's: only they may stand in `measurement-error/{name}` (topic-16)."""
        if prefix and not _PREFIX.fullmatch(prefix):
            raise MalformedTopic("prefix", f"{quote_input(prefix)} cannot stand in front of a topic")
        self._front = f"{prefix}/" if prefix else ""
        self._names = identifier_names
        self._shape = re.compile(re.escape(self._front) + _SHAPE)
        self._request = re.compile(re.escape(self._front) + _REQUEST)
        self.parse: Callable[[str], Topic] = lru_cache(TOPIC_CACHE_SIZE)(self.parse_uncached)

    def format_topic(self, topic: Topic) -> str:
        """Write a topic with the prefix in front (topic-7)."""
        return f"{self._front}{topic}"

    def format_response_topic(self, text: str, gateway: Mac) -> str | None:
        """Spell where this gateway answers a request that `parse` does not know; None: it is no request.

        Operations of later versions, and mistakes, are answered too (response-24).
        """
        found = self._request.fullmatch(text)
        if found is None or found[1] not in {None, gateway}:
            return None
        device = gateway if found[1] is None and found[2] == EVERY_GATEWAY else found[2]
        return f"{self._front}mt/gateway/{gateway}/response/{device}/{found[3]}"

    def parse_uncached(self, text: str) -> Topic:
        """Read a topic anew, or raise a `WireError` that names the part at fault."""
        found = self._shape.fullmatch(text)
        if found is None:
            raise _explain_malformed(text, self._front)
        groups: tuple[Any, ...] = found.groups()  # the shape has made sure of the MACs
        gateway, way, device, word, identifier = groups
        if gateway is None:
            return BroadcastTopic(device, *_operation(word, identifier))
        if way == "device":
            return self._report(gateway, device, word, identifier)
        kind = RequestTopic if way == "request" else ResponseTopic
        return kind(gateway, device, *_operation(word, identifier))

    def _report(self, gateway: Mac, device: Mac, word: str, identifier: str | None) -> ReportTopic:
        if (known := _KINDS.get(word)) is None:
            raise MalformedTopic("kind", f"{quote_input(word)} is not a kind of report")
        kind, checked = known
        if kind is Kind.MEASUREMENT_ERROR and identifier and self._is_name(identifier):
            kind, checked = _KINDS[Kind.MEASUREMENT_ERROR_DECODED]
        return ReportTopic(gateway, device, kind, checked(identifier))

    def _is_name(self, text: str) -> bool:
        return text in self._names and not is_identifier(text)

    def report_filter(self, gateway: Mac | None = None) -> str:
        """Spell the filter for the reports of one gateway, or of all."""
        return f"{self._front}mt/gateway/{gateway or '+'}/device/#"

    def response_filter(self, gateway: Mac | None = None) -> str:
        """Spell the filter for the responses of one gateway, or of all."""
        return f"{self._front}mt/gateway/{gateway or '+'}/response/#"

    def request_filter(self, gateway: Mac) -> str:
        """Spell the filter for the requests to one gateway."""
        return f"{self._front}mt/gateway/{gateway}/request/#"

    def broadcast_filter(self) -> str:
        """Spell the filter for what goes to all gateways; more than requests may come there one day."""
        return f"{self._front}mt/gateways/#"


# Up to 128 characters in levels that are not empty, as in names; `$` in front belongs to the broker.
_PREFIX = re.compile(
    r"(?!\$)(?!.{129})[^/+#\x00-\x1f\x7f\ud800-\udfff]+(?:/[^/+#\x00-\x1f\x7f\ud800-\udfff]+)*"
)

# One match reads a well-formed topic; what is wrong with any other is found out only then.
_SHAPE = (
    r"mt/(?:gateway/([0-9a-f]{12})/(device|request|response)|gateways/request)"
    r"/([0-9a-f]{12})/([^/]+)(?:/([^/]+))?"
)

_REQUEST = r"mt/(?:gateway/([0-9a-f]{12})|gateways)/request/([0-9a-f]{12})/([^+#\x00]+)"


def _explain_malformed(text: str, front: str) -> WireError:
    """Say why a topic has not the shape of one."""
    if not text.startswith(front):
        return MalformedTopic(
            "topic", f"{quote_input(text)} does not start with the prefix {quote_input(front)}"
        )
    match text.removeprefix(front).split("/"):
        case ["mt", "gateway", gateway, "device" | "request" | "response", device, *_]:
            macs = {"gateway": gateway, "device": device}
        case ["mt", "gateways", "request", device, *_]:
            macs = {"device": device}
        case _:
            return MalformedTopic("topic", f"{quote_input(text)} is not a topic of the protocol")
    for field, mac in macs.items():
        try:
            parse_mac(mac, field)
        except MalformedMac as exc:
            return exc
    return MalformedTopic(
        "topic", f"{quote_input(text)} does not end in a kind or operation and at most one identifier"
    )


def _operation(word: str, identifier: str | None) -> tuple[Operation, AnyIdentifier | None]:
    if (known := _OPERATIONS.get(word)) is None:
        raise MalformedTopic("operation", f"{quote_input(word)} is not an operation")
    operation, checked = known
    return operation, checked(identifier)


def _no_identifier(text: str | None) -> None:
    if text is not None:
        raise MalformedIdentifier("identifier", f"{quote_input(text)} stands where none belongs")


@lru_cache(_IDENTIFIER_CACHE_SIZE)
def _raw_identifier(text: str | None) -> Identifier:
    return parse_identifier(_given(text))


@lru_cache(_IDENTIFIER_CACHE_SIZE)
def _identifier_name(text: str | None) -> IdentifierName:
    return parse_identifier_name(_given(text))


def _given(text: str | None) -> str:
    if text is None:
        raise MalformedIdentifier("identifier", "is missing")
    return text


_WordT = TypeVar("_WordT", Kind, Operation)
_Check = Callable[[str | None], AnyIdentifier | None]


def _words(words: type[_WordT]) -> dict[str, tuple[_WordT, _Check]]:
    """Give each word that may stand in a topic, with what checks the identifier that the word asks for."""
    named: dict[bool, _Check] = {True: _identifier_name, False: _raw_identifier}
    return {
        str(word): (word, named[word.is_decoded] if word.has_identifier else _no_identifier) for word in words
    }


_KINDS = _words(Kind)
_OPERATIONS = _words(Operation)


def _tail(identifier: str | None) -> str:
    return "" if identifier is None else f"/{identifier}"
