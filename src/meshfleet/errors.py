"""Every error that Meshfleet raises on purpose.

    FleetError
    ├── WireError                 something on the wire breaks the protocol; names the field and the reason
    │   ├── MalformedId
    │   │   ├── MalformedMac
    │   │   ├── MalformedDeviceId
    │   │   ├── MalformedIdentifier
    │   │   ├── MalformedModelNumber
    │   │   └── MalformedVersion
    │   ├── MalformedTime
    │   ├── MalformedHex
    │   ├── MalformedText         a name or label that cannot be one
    │   ├── MalformedTopic
    │   ├── MalformedPacket       bytes that are no MQTT packet, or a packet that may not be sent
    │   │   ├── PacketTooLarge
    │   │   └── UnsupportedProtocol
    │   ├── MalformedPayload
    │   │   └── PayloadTooLarge
    │   ├── UnknownIdentifier     not in the catalogue, or there without a known layout
    │   ├── UndecodableValue      raw bytes that do not fit the identifier's layout
    │   ├── UnencodableValue      a JSON value that does not fit the identifier's layout
    │   ├── MalformedImage        firmware that is broken
    │   └── MalformedAddress      a broker's or service's URL that cannot be used
    ├── LinkError                 the connection to a broker
    │   ├── BrokerUnreachable     nobody answers there
    │   ├── UntrustedBroker       somebody answers, whose certificate does not hold
    │   ├── ConnectionRefused     the broker does not let us in, and says why
    │   ├── ConnectionLost
    │   ├── SubscriptionRefused   the broker grants less than was asked
    │   ├── LinkClosed            by ourselves
    │   └── Undelivered           closed before the broker acknowledged everything
    ├── ImageUnavailable          nobody gives us the firmware image; another try may help
    ├── ImageBroken               we got it, and it is not what was promised, or no image at all
    ├── ServiceRefused            the service does not do what we ask over REST, or is none
    ├── UnusableCertificate       a file with certificates or a key that cannot be read
    ├── GatewayTooOld             an operation or parameter that the gateway's version does not have
    ├── MalformedCatalogue        an identifier table with mistakes; names each line
    ├── MalformedSite             a site file with mistakes; names each place
    └── UnreadableMemory          what emulated devices kept cannot be given back to them

`code` is stable and part of the interface; the text is for people and may change. `http` is the status of the
REST answer when the error reaches it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

_SHOWN = 60
"""Characters of foreign input that an error repeats: enough to recognise it, too few to flood a log."""


_LARGE = 10**_SHOWN
"""Python refuses to write out numbers of some thousand digits."""


def shown(value: object) -> str:
    """Foreign input as an error may show it: quoted, escaped, and cut when long."""
    match value:
        case str() | bytes():
            quoted = repr(value[: _SHOWN + 1])
            return quoted if len(quoted) <= _SHOWN else quoted[:_SHOWN] + "…"
        case bool() | float() | None:
            return repr(value)
        case int():
            return repr(value) if abs(value) < _LARGE else "a very large number"
        case dict():
            return "an object"
        case list():
            return "an array"
    return f"a {type(value).__name__}"


def plain(name: str) -> str:
    """A foreign name as the field of an error: as it is when it looks like a name, else as input is shown."""
    return name if len(name) <= _SHOWN and name.isascii() and name.isprintable() else shown(name)


def path(field: str, name: str) -> str:
    """A part of a field, under a name that may be foreign."""
    return f"{field}.{plain(name)}"


class FleetError(Exception):
    """Anything Meshfleet can say went wrong."""

    code: ClassVar[str] = "error"
    http: ClassVar[int] = 500


class WireError(FleetError):
    """Something on the wire breaks the protocol. It will never become valid by trying again."""

    code, http = "malformed", 400

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(field, reason)
        self.field = field
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.field}: {self.reason}"


class MalformedId(WireError):
    """A text that is not the id it should be."""

    code = "malformed-id"


class MalformedMac(MalformedId):
    """Not 12 hex digits, or not in lower case where that is the rule."""

    code = "malformed-mac"


class MalformedDeviceId(MalformedId):
    """Not `bmac-` and a MAC."""

    code = "malformed-device-id"


class MalformedIdentifier(MalformedId):
    """Neither the hex of an identifier nor, where names are expected, a usable name."""

    code = "malformed-identifier"


class MalformedModelNumber(MalformedId):
    """Not four hex digits."""

    code = "malformed-model-number"


class MalformedVersion(MalformedId):
    """Not a dotted version."""

    code = "malformed-version"


class MalformedTime(WireError):
    """Not a date and time of ISO 8601, or none that exists."""

    code = "malformed-time"


class MalformedHex(WireError):
    """Not an even number of hex digits."""

    code = "malformed-hex"


class MalformedText(WireError):
    """A name or label that is too short, too long, or made of what cannot be shown."""

    code = "malformed-text"


class MalformedTopic(WireError):
    """Not a topic of the protocol."""

    code = "malformed-topic"


class MalformedPacket(WireError):
    """Bytes that are no packet of MQTT 3.1.1, or a packet that breaks its rules."""

    code = "malformed-packet"


class PacketTooLarge(MalformedPacket):
    """A packet longer than the receiver takes."""

    code, http = "packet-too-large", 413


class UnsupportedProtocol(MalformedPacket):
    """A client that speaks another version of MQTT."""

    code = "unsupported-protocol"


class MalformedPayload(WireError):
    """Not the JSON object that the topic asks for."""

    code = "malformed-payload"


class PayloadTooLarge(MalformedPayload):
    """Longer than any payload of the protocol."""

    code, http = "payload-too-large", 413


class UnknownIdentifier(WireError):
    """Not in the catalogue, or there as raw only."""

    code = "unknown-identifier"


class UndecodableValue(WireError):
    """Raw bytes that do not fit the identifier's layout."""

    code = "undecodable-value"


class UnencodableValue(WireError):
    """A JSON value that does not fit the identifier's layout."""

    code = "unencodable-value"


class MalformedImage(WireError):
    """A firmware image that is empty, broken, or not what it says it is."""

    code = "malformed-image"


class MalformedAddress(WireError):
    """A URL of a broker or service that cannot be used. It is not repeated: it may hold a password."""

    code = "malformed-address"


class LinkError(FleetError):
    """The connection to a broker is not there, or not as it should be. Another try may help."""

    code, http = "link-error", 503


class BrokerUnreachable(LinkError):
    """Nobody answers at the broker's address, or not as a broker would."""

    code = "broker-unreachable"


class UntrustedBroker(LinkError):
    """The certificate at the broker's address does not hold."""

    code = "untrusted-broker"


class ConnectionRefused(LinkError):
    """The broker does not let us in. `reason` is its return code."""

    code = "connection-refused"

    def __init__(self, broker: str, reason: int, words: str) -> None:
        super().__init__(broker, reason, words)
        self.broker = broker
        self.reason = reason
        self.words = words

    def __str__(self) -> str:
        return f"{self.broker} refuses the connection: {self.words} (return code {self.reason})"


class ConnectionLost(LinkError):
    """The connection ended, and not by our will."""

    code = "connection-lost"


class SubscriptionRefused(LinkError):
    """The broker grants less than was asked: nothing, or a lower QoS."""

    code = "subscription-refused"

    def __init__(self, filters: Sequence[str]) -> None:
        super().__init__(filters)
        self.filters = tuple(filters)

    def __str__(self) -> str:
        return f"the broker does not grant what was asked for {', '.join(map(shown, self.filters))}"


class LinkClosed(LinkError):
    """The link was closed by its owner."""

    code = "link-closed"


class Undelivered(LinkError):
    """The link was closed before the broker acknowledged everything that was published."""

    code = "undelivered"

    def __init__(self, messages: int) -> None:
        super().__init__(messages)
        self.messages = messages

    def __str__(self) -> str:
        count = "one message" if self.messages == 1 else f"{self.messages} messages"
        return f"closed before the broker acknowledged {count}, which it may have got"


class ImageUnavailable(FleetError):
    """Nobody says where a firmware image is, or it cannot be fetched there. Another try may help."""

    code = "image-unavailable"


class ImageBroken(FleetError):
    """What was fetched is not the firmware image that was promised. It will not get better."""

    code = "image-broken"


class ServiceRefused(FleetError):
    """The service does not do what we ask of it over REST, is not there, or is something else."""

    code = "service-refused"


class UnusableCertificate(FleetError):
    """A file with certificates or a key that cannot be read."""

    code = "unusable-certificate"

    def __init__(self, files: str, reason: str) -> None:
        super().__init__(files, reason)
        self.files = files
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.files}: {self.reason}"


class GatewayTooOld(FleetError):
    """The gateway's API version does not have what is asked of it."""

    code, http = "gateway-too-old", 409

    def __init__(self, feature: str, since: object, version: object) -> None:
        super().__init__(feature, since, version)
        self.feature = feature
        self.since = since
        self.version = version

    def __str__(self) -> str:
        return f"{self.feature} needs API version {self.since}; the gateway has {self.version}"


class Mistake(NamedTuple):
    """One mistake in an identifier table."""

    line: int
    reason: str


class MalformedCatalogue(FleetError):
    """An identifier table with mistakes, all of them."""

    code, http = "malformed-catalogue", 400

    def __init__(self, source: str, mistakes: Sequence[Mistake]) -> None:
        super().__init__(source, mistakes)
        self.source = source
        self.mistakes = tuple(mistakes)

    def __str__(self) -> str:
        return "\n".join(f"{self.source}:{line}: {reason}" for line, reason in self.mistakes)


class MalformedSite(FleetError):
    """A site file with mistakes, all of them: where they are, and what they are."""

    code, http = "malformed-site", 400

    def __init__(self, source: str, mistakes: Sequence[tuple[str, str]]) -> None:
        super().__init__(source, mistakes)
        self.source = source
        self.mistakes = tuple(mistakes)

    def __str__(self) -> str:
        return "\n".join(f"{self.source}: {where}: {reason}" for where, reason in self.mistakes)


class UnreadableMemory(FleetError):
    """What emulated devices kept, in a form that is none."""

    code, http = "unreadable-memory", 400
