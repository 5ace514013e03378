"""The closed sets of the protocol: kinds, operations, and the numbers that stand for something."""

from __future__ import annotations

from enum import IntEnum, StrEnum

# How far an update of firmware is, as 8120, 8125 and 8130 tell it (firmware-4 to firmware-6).


class UpdateState(IntEnum):
    """What is being done; decoded, its name in lower case (firmware-5)."""

    IDLE = 0
    FETCHING = 1
    TRANSFERRING = 2
    VERIFYING = 3
    STAGED = 4
    APPLYING = 5
    DONE = 6
    FAILED = 7


class UpdateErrorCode(IntEnum):
    """Why an update failed (firmware-6)."""

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
    """What a report reports, as its topic says it (report-1 to report-11)."""

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

    # Enum hashes by its name in Python code; these are dictionary keys on the hot path.
    __hash__ = str.__hash__

    @property
    def is_decoded(self) -> bool:
        """Whether the topic carries a name and the payload a JSON value."""
        return self.endswith("-decoded")

    @property
    def raw_kind(self) -> Kind:
        """The kind that both forms of a sample count as (report-37)."""
        return Kind(self.removesuffix("-decoded"))

    @property
    def has_identifier(self) -> bool:
        """Whether the topic carries an identifier (topic-12 to topic-14)."""
        return self not in (Kind.HEARTBEAT, Kind.DFU, Kind.RSSI)


class Operation(StrEnum):
    """What a request asks for, as its topic says it."""

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
        """Whether the topic carries a name and the payload a JSON value."""
        return self.endswith("-decoded")

    @property
    def has_identifier(self) -> bool:
        """Whether the topic carries an identifier (topic-17 to topic-19)."""
        return self is not Operation.APIVERSION

    @property
    def is_answered(self) -> bool:
        """Whether a response comes at all (ack-5)."""
        return self not in (Operation.ACK, Operation.ACK_DECODED)


class Priority(IntEnum):
    """How the mesh routes a request and its response (request-5)."""

    LOWEST = 0
    LOW = 1
    MEDIUM = 2
    HIGH = 3
    HIGHEST = 4


class Origin(IntEnum):
    """Who answered (response-4)."""

    CONNECTED = 0
    """The connected target itself."""
    UNCONNECTED = 1
    """The unconnected target, through an extender."""
    EXTENDER = 16
    """The extender, instead of the unconnected target."""
    GATEWAY = 32
    """The gateway, instead of the target."""


class AckType(IntEnum):
    """What an ack does to the samples that the device still holds (ack-3)."""

    ACK = 0
    BACKFILL = 1
    """Acknowledge, and send what is older, newest first."""
    ERASE_ALL = 2


class AccessType(StrEnum):
    """How a device outside the secure network is reached (request-21)."""

    UNPROVISIONED = "unprovisioned"
    LEGACY = "legacy"


class Status(IntEnum):
    """The statuses with a meaning here; others pass through as plain numbers (response-20, response-21)."""

    OK = 0
    FAILED = 1
    INVALID_REQUEST = 2
    UNKNOWN_OPERATION = 3
    UNKNOWN_IDENTIFIER = 4
    NOT_SUPPORTED = 5
    INVALID_VALUE = 6
    ACCESS_NOT_ALLOWED = 7
    """Reading what is write-only, or writing what is read-only."""
    BUSY = 8
    TIMEOUT = 9
    UNREACHABLE = 10
    ACCESS_DENIED = 11
    """A wrong key or access type."""
