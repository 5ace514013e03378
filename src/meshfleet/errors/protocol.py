"""Errors of data that violates the MT2 protocol, MQTT 3.1.1 or the formats of the REST API."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Self

from meshfleet.errors import FleetError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from meshfleet.errors import ProblemDetails


class MalformedInput(FleetError):
    """Base class of errors of malformed data, such as an id, topic, payload or argument."""

    code, http = "malformed", 400

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(field, reason)
        self.field = field
        self.reason = reason

    @classmethod
    def from_problem(cls, problem: ProblemDetails) -> Self:
        """Rebuild the error with the field and the reason of the first fault in an error response."""
        return cls(*(problem.faults[0] if problem.faults else ("request", problem.detail)))

    def __str__(self) -> str:
        return f"{self.field}: {self.reason}"


class MalformedId(MalformedInput):
    """Base class of errors of malformed ids, such as MACs, identifiers and versions."""

    code = "malformed-id"


class MalformedMac(MalformedId):
    """Raised when a MAC is not 12 hex digits, or not in lower case where lower case is required."""

    code = "malformed-mac"


class MalformedDeviceId(MalformedId):
    """Raised when a device id is not `bmac-` followed by a MAC."""

    code = "malformed-device-id"


class MalformedIdentifier(MalformedId):
    """Raised when an identifier is neither hex digits nor, where names are accepted, a valid name."""

    code = "malformed-identifier"


class MalformedModelNumber(MalformedId):
    """Raised when a model number is not four hex digits."""

    code = "malformed-model-number"


class MalformedVersion(MalformedId):
    """Raised when a version does not consist of numbers separated by dots, such as `1.2.3`."""

    code = "malformed-version"


class MalformedTime(MalformedInput):
    """Raised when a time is not an ISO 8601 date and time, or does not exist in the calendar."""

    code = "malformed-time"


class MalformedHex(MalformedInput):
    """Raised when a raw value does not consist of an even number of hex digits."""

    code = "malformed-hex"


class MalformedText(MalformedInput):
    """Raised when a name or label is too short, too long, or has control characters."""

    code = "malformed-text"


class MalformedTopic(MalformedInput):
    """Raised when an MQTT topic is not defined by the MT2 protocol."""

    code = "malformed-topic"


class MalformedPacket(MalformedInput):
    """Raised when received bytes are not a valid MQTT 3.1.1 packet."""

    code = "malformed-packet"


class PacketTooLarge(MalformedPacket):
    """Raised when an MQTT packet is larger than the receiver accepts."""

    code, http = "packet-too-large", 413


class UnsupportedProtocol(MalformedPacket):
    """Raised when an MQTT client uses a version of MQTT other than 3.1.1."""

    code = "unsupported-protocol"


class MalformedPayload(MalformedInput):
    """Raised when a payload or body is not the JSON object that its topic or path requires."""

    code = "malformed-payload"


class PayloadTooLarge(MalformedPayload):
    """Raised when an MQTT payload is larger than the MT2 protocol allows."""

    code, http = "payload-too-large", 413


class UnknownIdentifier(MalformedInput):
    """Raised when the catalogue lacks an identifier's name or value layout. Use the hex id instead."""

    code = "unknown-identifier"


class UndecodableValue(MalformedInput):
    """Raised when a raw value (bytes) does not fit the layout of the identifier's values."""

    code = "undecodable-value"


class UnencodableValue(MalformedInput):
    """Raised when a JSON value does not fit the layout of the identifier's values."""

    code = "unencodable-value"


class MalformedImage(MalformedInput):
    """Raised when a firmware image is empty, damaged, or not of the declared model and version."""

    code = "malformed-image"


class UnclaimedGateway(MalformedInput):
    """Raised when an unclaimed gateway publishes a report."""

    code = "unclaimed-gateway"


class UnstorableReport(MalformedInput):
    """Raised when the database rejects a report that is well-formed."""

    code = "unstorable-report"


class MalformedAddress(MalformedInput):
    """Raised when a broker or service URL is invalid. The message omits the URL and thus any password."""

    code = "malformed-address"


class GatewayTooOld(FleetError):
    """Raised when a request needs a newer API version than the gateway has."""

    code, http = "gateway-too-old", 409

    def __init__(self, feature: str, since: object = None, version: object = None) -> None:
        super().__init__(feature, since, version)
        self.feature = feature
        """Operation or parameter that needs a newer version. In an error rebuilt from a REST response, the
        whole message; `since` and `version` are then None."""
        self.since = since
        self.version = version

    def __str__(self) -> str:
        if self.since is None:
            return self.feature
        return f"{self.feature} needs API version {self.since} or newer; the gateway has {self.version}"


class LineFault(NamedTuple):
    """Invalid line of a table of identifiers, and the reason why the line is invalid."""

    line: int
    reason: str


class MalformedCatalogue(FleetError):
    """Raised when a table of identifiers is invalid. `faults` lists all invalid lines."""

    code, http = "malformed-catalogue", 400

    def __init__(self, source: str, faults: Sequence[LineFault]) -> None:
        super().__init__(source, faults)
        self.source = source
        self.faults = tuple(faults)

    def __str__(self) -> str:
        return "\n".join(f"{self.source}:{line}: {reason}" for line, reason in self.faults)
