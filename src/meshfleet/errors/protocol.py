"""Errors of the protocol."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Self

from meshfleet.errors import FleetError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from meshfleet.errors import ProblemDetails


class WireError(FleetError):
    """Something on the wire breaks the protocol. It will never become valid by trying again."""

    code, http = "malformed", 400

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(field, reason)
        self.field = field
        self.reason = reason

    @classmethod
    def from_problem(cls, problem: ProblemDetails) -> Self:
        """With the field and the reason apart."""
        return cls(*(problem.faults[0] if problem.faults else ("request", problem.detail)))

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


class UnclaimedGateway(WireError):
    """A gateway speaks that nobody claimed."""

    code = "unclaimed-gateway"


class UnstorableReport(WireError):
    """A report that the database does not take, although it is well-formed."""

    code = "unstorable-report"


class MalformedAddress(WireError):
    """A URL of a broker or service that cannot be used. It is not repeated: it may hold a password."""

    code = "malformed-address"


class GatewayTooOld(FleetError):
    """The gateway's API version does not have what is asked of it."""

    code, http = "gateway-too-old", 409

    def __init__(self, feature: str, since: object = None, version: object = None) -> None:
        super().__init__(feature, since, version)
        self.feature = feature
        """Told by a service it is the whole sentence, and versions are None."""
        self.since = since
        self.version = version

    def __str__(self) -> str:
        if self.since is None:
            return self.feature
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
