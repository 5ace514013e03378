"""Parsing and formatting of MQTT topics; {g} and {d} are the MACs of gateway and device.

    mt/gateway/{g}/device/{d}/<kind>[/<identifier>]            a report
    mt/gateway/{g}/request/{d}/<operation>[/<identifier>]      a request to one gateway
    mt/gateways/request/{d}/<operation>[/<identifier>]         a request to all gateways
    mt/gateway/{g}/response/{d}/<operation>[/<identifier>]     a response

The topic types do not contain the topic prefix of an installation; `TopicCodec` adds and removes the prefix.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, TypeVar

from msgspec import Struct

from meshfleet.errors import quote_input
from meshfleet.errors.protocol import MalformedIdentifier, MalformedInput, MalformedMac, MalformedTopic
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
"""Maximum number of parsed topics in the cache of a `TopicCodec`. Gateways use the same topics repeatedly."""

_IDENTIFIER_CACHE_SIZE: Final = 1 << 12
"""Maximum number of identifiers in each identifier cache. Only a hostile client uses more than dozens."""

AnyIdentifier = Identifier | IdentifierName


class ReportTopic(Struct, frozen=True, gc=False):
    """Topic of a report about a device. `device` equals `gateway` for a report about the gateway itself."""

    gateway: Mac
    device: Mac
    kind: Kind
    identifier: AnyIdentifier | None = None

    def __str__(self) -> str:
        return f"mt/gateway/{self.gateway}/device/{self.device}/{self.kind}{_suffix(self.identifier)}"


class RequestTopic(Struct, frozen=True, gc=False):
    """Topic of a request to one gateway. `device` equals `gateway` if the gateway itself is the target."""

    gateway: Mac
    device: Mac
    operation: Operation
    identifier: AnyIdentifier | None = None

    def to_response_topic(self) -> ResponseTopic:
        """Return the topic of the response to this request (topic-4)."""
        return ResponseTopic(self.gateway, self.device, self.operation, self.identifier)

    def __str__(self) -> str:
        return f"mt/gateway/{self.gateway}/request/{self.device}/{self.operation}{_suffix(self.identifier)}"


class BroadcastTopic(Struct, frozen=True, gc=False):
    """Topic of a request to all gateways. If `device` is `EVERY_GATEWAY`, each gateway is its own target."""

    device: Mac
    operation: Operation
    identifier: AnyIdentifier | None = None

    def to_request_topic(self, gateway: Mac) -> RequestTopic:
        """Return the topic of the same request to a single gateway, `gateway` (topic-11)."""
        device = gateway if self.device == EVERY_GATEWAY else self.device
        return RequestTopic(gateway, device, self.operation, self.identifier)

    def __str__(self) -> str:
        return f"mt/gateways/request/{self.device}/{self.operation}{_suffix(self.identifier)}"


class ResponseTopic(Struct, frozen=True, gc=False):
    """Topic of the response of a gateway to a request."""

    gateway: Mac
    device: Mac
    operation: Operation
    identifier: AnyIdentifier | None = None

    def __str__(self) -> str:
        return f"mt/gateway/{self.gateway}/response/{self.device}/{self.operation}{_suffix(self.identifier)}"


Topic = ReportTopic | RequestTopic | BroadcastTopic | ResponseTopic


class TopicCodec:
    """Parses and formats the MQTT topics below one topic prefix. Parsed topics are cached."""

    def __init__(self, prefix: str = "", *, identifier_names: Container[str] = ()) -> None:
        """Create a codec for the topics below the topic prefix `prefix`, which may be empty.

        In `measurement-error/{name}` only names in `identifier_names` are accepted (topic-16).
        """
        if prefix and not _PREFIX.fullmatch(prefix):
            raise MalformedTopic("prefix", f"{quote_input(prefix)} is not a valid topic prefix")
        self._prefix = f"{prefix}/" if prefix else ""
        self._identifier_names = identifier_names
        self._shape = re.compile(re.escape(self._prefix) + _SHAPE)
        self._request = re.compile(re.escape(self._prefix) + _REQUEST)
        self.parse: Callable[[str], Topic] = lru_cache(TOPIC_CACHE_SIZE)(self.parse_uncached)

    def format_topic(self, topic: Topic) -> str:
        """Return the MQTT topic string, with the topic prefix (topic-7)."""
        return f"{self._prefix}{topic}"

    def format_response_topic(self, text: str, gateway: Mac) -> str | None:
        """Return the topic on which a gateway responds to a request on the topic `text`, which is malformed.

        Unknown operations, such as operations of later versions, also get a response (response-24). Return
        None if `text` is not the topic of a request to the gateway.
        """
        match = self._request.fullmatch(text)
        if match is None or match[1] not in {None, gateway}:
            return None
        device = gateway if match[1] is None and match[2] == EVERY_GATEWAY else match[2]
        return f"{self._prefix}mt/gateway/{gateway}/response/{device}/{match[3]}"

    def parse_uncached(self, text: str) -> Topic:
        """Parse a topic without the cache, or raise a `MalformedInput` that names the invalid part."""
        match = self._shape.fullmatch(text)
        if match is None:
            raise _build_topic_error(text, self._prefix)
        groups: tuple[Any, ...] = match.groups()  # the pattern has checked the MACs
        gateway, direction, device, keyword, identifier = groups
        if gateway is None:
            return BroadcastTopic(device, *_parse_operation(keyword, identifier))
        if direction == "device":
            return self._parse_report(gateway, device, keyword, identifier)
        topic_type = RequestTopic if direction == "request" else ResponseTopic
        return topic_type(gateway, device, *_parse_operation(keyword, identifier))

    def _parse_report(self, gateway: Mac, device: Mac, keyword: str, identifier: str | None) -> ReportTopic:
        """Build a report topic from its parts. Raise `MalformedInput` if kind or identifier are invalid."""
        if (entry := _KINDS.get(keyword)) is None:
            raise MalformedTopic("kind", f"{quote_input(keyword)} is not a report kind")
        kind, parse_identifier_part = entry
        if kind is Kind.MEASUREMENT_ERROR and identifier and self._is_identifier_name(identifier):
            kind, parse_identifier_part = _KINDS[Kind.MEASUREMENT_ERROR_DECODED]
        return ReportTopic(gateway, device, kind, parse_identifier_part(identifier))

    def _is_identifier_name(self, text: str) -> bool:
        return text in self._identifier_names and not is_identifier(text)

    def report_filter(self, gateway: Mac | None = None) -> str:
        """Return the topic filter for reports of one gateway, or of all gateways if `gateway` is None."""
        return f"{self._prefix}mt/gateway/{gateway or '+'}/device/#"

    def response_filter(self, gateway: Mac | None = None) -> str:
        """Return the topic filter for responses of one gateway, or of all gateways if `gateway` is None."""
        return f"{self._prefix}mt/gateway/{gateway or '+'}/response/#"

    def request_filter(self, gateway: Mac) -> str:
        """Return the topic filter for the requests to one gateway."""
        return f"{self._prefix}mt/gateway/{gateway}/request/#"

    def broadcast_filter(self) -> str:
        """Return the topic filter for all messages that are sent to all gateways, such as requests."""
        return f"{self._prefix}mt/gateways/#"


# At most 128 characters in non-empty levels, as in names; a leading `$` is reserved for the broker.
_PREFIX = re.compile(
    r"(?!\$)(?!.{129})[^/+#\x00-\x1f\x7f\ud800-\udfff]+(?:/[^/+#\x00-\x1f\x7f\ud800-\udfff]+)*"
)

# One match parses a valid topic. Only if it fails, `_build_topic_error` determines the reason.
_SHAPE = (
    r"mt/(?:gateway/([0-9a-f]{12})/(device|request|response)|gateways/request)"
    r"/([0-9a-f]{12})/([^/]+)(?:/([^/]+))?"
)

_REQUEST = r"mt/(?:gateway/([0-9a-f]{12})|gateways)/request/([0-9a-f]{12})/([^+#\x00]+)"


def _build_topic_error(text: str, prefix: str) -> MalformedInput:
    """Build the error that says why a topic is malformed."""
    if not text.startswith(prefix):
        return MalformedTopic(
            "topic", f"{quote_input(text)} does not start with the prefix {quote_input(prefix)}"
        )
    match text.removeprefix(prefix).split("/"):
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


def _parse_operation(keyword: str, identifier: str | None) -> tuple[Operation, AnyIdentifier | None]:
    """Parse the operation and the identifier at the end of a request or response topic."""
    if (entry := _OPERATIONS.get(keyword)) is None:
        raise MalformedTopic("operation", f"{quote_input(keyword)} is not an operation")
    operation, parse_identifier_part = entry
    return operation, parse_identifier_part(identifier)


def _reject_identifier(text: str | None) -> None:
    """Raise `MalformedIdentifier` if a topic has an identifier although its kind or operation has none."""
    if text is not None:
        raise MalformedIdentifier(
            "identifier", f"{quote_input(text)} is not allowed: this kind or operation has no identifier"
        )


@lru_cache(_IDENTIFIER_CACHE_SIZE)
def _parse_raw_identifier(text: str | None) -> Identifier:
    return parse_identifier(_require_identifier(text))


@lru_cache(_IDENTIFIER_CACHE_SIZE)
def _parse_identifier_name(text: str | None) -> IdentifierName:
    return parse_identifier_name(_require_identifier(text))


def _require_identifier(text: str | None) -> str:
    """Return the identifier at the end of a topic, or raise `MalformedIdentifier` if it is missing."""
    if text is None:
        raise MalformedIdentifier("identifier", "is missing")
    return text


_KeywordT = TypeVar("_KeywordT", Kind, Operation)
_IdentifierParser = Callable[[str | None], AnyIdentifier | None]


def _build_keyword_table(keywords: type[_KeywordT]) -> dict[str, tuple[_KeywordT, _IdentifierParser]]:
    """Return the report kinds or operations by their name in a topic, each with its identifier parser."""
    parsers: dict[bool, _IdentifierParser] = {True: _parse_identifier_name, False: _parse_raw_identifier}
    return {
        str(keyword): (keyword, parsers[keyword.is_decoded] if keyword.has_identifier else _reject_identifier)
        for keyword in keywords
    }


_KINDS = _build_keyword_table(Kind)
_OPERATIONS = _build_keyword_table(Operation)


def _suffix(identifier: str | None) -> str:
    """Return the end of a topic: a slash and the identifier, or nothing if there is no identifier."""
    return "" if identifier is None else f"/{identifier}"
