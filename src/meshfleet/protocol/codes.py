"""Enumerations of the protocol: report kinds, request operations and numeric codes."""

from __future__ import annotations

from enum import IntEnum, StrEnum

# Progress of a firmware update, as reported in the properties 8120, 8125 and 8130 (firmware-4 to firmware-6).


class UpdateState(IntEnum):
    """State of a firmware update on a device. JSON values have the name in lower case (firmware-5)."""

    IDLE = 0
    FETCHING = 1
    TRANSFERRING = 2
    VERIFYING = 3
    STAGED = 4
    APPLYING = 5
    DONE = 6
    FAILED = 7


class UpdateErrorCode(IntEnum):
    """Reason why a firmware update failed (firmware-6)."""

    NONE = 0
    NO_IMAGE = 1
    WRONG_MODEL = 2
    BAD_HASH = 3
    DOWNGRADE = 4
    BATTERY = 5
    ABORTED = 6
    TRANSFER_LOST = 7
    ROLLED_BACK = 8


class Kind(StrEnum):
    """Kind of a report, as written in the topic of the report (report-1 to report-11)."""

    HEARTBEAT = "heartbeat"
    DFU = "dfu"
    RSSI = "rssi"
    PROPERTY = "property"
    PROPERTY_DECODED = "property-decoded"
    MEASUREMENT = "measurement"
    MEASUREMENT_DECODED = "measurement-decoded"
    MEASUREMENT_ERROR = "measurement-error"
    MEASUREMENT_ERROR_DECODED = "measurement-error-decoded"
    EVENT = "event"
    EVENT_DECODED = "event-decoded"

    # Enum's own hash is slow Python code, and kinds are dictionary keys on the hot path.
    __hash__ = str.__hash__

    @property
    def is_decoded(self) -> bool:
        """Whether the identifier is a name and the value is JSON, instead of hex."""
        return self.endswith("-decoded")

    @property
    def raw_kind(self) -> Kind:
        """Report kind without `-decoded`: raw and decoded samples are stored under one kind (report-37)."""
        return Kind(self.removesuffix("-decoded"))

    @property
    def has_identifier(self) -> bool:
        """Whether the topic of such a report has an identifier (topic-12 to topic-14)."""
        return self not in (Kind.HEARTBEAT, Kind.DFU, Kind.RSSI)


class Operation(StrEnum):
    """Operation of a request, as written in the topic of the request."""

    APIVERSION = "apiversion"
    READ = "read"
    READ_DECODED = "read-decoded"
    WRITE = "write"
    WRITE_DECODED = "write-decoded"
    ACK = "ack"
    ACK_DECODED = "ack-decoded"

    __hash__ = str.__hash__

    @property
    def is_decoded(self) -> bool:
        """Whether the identifier is a name and the value is JSON, instead of hex."""
        return self.endswith("-decoded")

    @property
    def has_identifier(self) -> bool:
        """Whether the topic of such a request has an identifier (topic-17 to topic-19)."""
        return self is not Operation.APIVERSION

    @property
    def is_answered(self) -> bool:
        """Whether the gateway sends a response to such a request (ack-5)."""
        return self not in (Operation.ACK, Operation.ACK_DECODED)


class Priority(IntEnum):
    """Priority with which the mesh routes a request and its response (request-5)."""

    LOWEST = 0
    LOW = 1
    MEDIUM = 2
    HIGH = 3
    HIGHEST = 4


class Origin(IntEnum):
    """Sender of a response to a request (response-4)."""

    CONNECTED = 0
    """The target device itself, which is connected to the mesh."""
    UNCONNECTED = 1
    """The target device itself, which is not connected to the mesh; an extender forwarded the response."""
    EXTENDER = 16
    """An extender, on behalf of a target device that is not connected to the mesh."""
    GATEWAY = 32
    """The gateway, on behalf of the target device."""


class AckType(IntEnum):
    """Effect of an ack on the samples that the device still stores (ack-3)."""

    ACK = 0
    BACKFILL = 1
    """Acknowledge the sample, and request older samples, newest first."""
    ERASE_ALL = 2


class AccessType(StrEnum):
    """How a request accesses a device outside the secured mesh (request-21)."""

    UNPROVISIONED = "unprovisioned"
    LEGACY = "legacy"


class Status(IntEnum):
    """Status code of a response. Gateways may also send other codes (response-20, response-21)."""

    OK = 0
    FAILED = 1
    INVALID_REQUEST = 2
    UNKNOWN_OPERATION = 3
    UNKNOWN_IDENTIFIER = 4
    NOT_SUPPORTED = 5
    INVALID_VALUE = 6
    ACCESS_NOT_ALLOWED = 7
    """The request reads a write-only property or writes a read-only property."""
    BUSY = 8
    TIMEOUT = 9
    UNREACHABLE = 10
    ACCESS_DENIED = 11
    """The key or the access type in the request is wrong."""
