"""What exists since which version of the messaging interface, in one table."""

from __future__ import annotations

from functools import lru_cache
from typing import Final, Literal, NamedTuple

from meshfleet.errors.protocol import GatewayTooOld
from meshfleet.protocol.codes import Kind, Operation
from meshfleet.protocol.ids import Version

InterfacePart = Literal["report", "request", "response", "configuration"]

LATEST_VERSION: Final = Version(2, 4, 0)
ASSUMED_VERSION: Final = Version(1, 2, 0)
"""What a gateway counts as until it has told its version (version-11)."""


class Feature(NamedTuple):
    """A field, parameter or operation and the version that brought it."""

    since: Version
    part: InterfacePart
    message: Kind | Operation | None
    """The kind or operation it belongs to; None: all of them, unless a row of their own says otherwise."""
    field: str | None
    """None: the operation itself."""


def _row(since: str, part: InterfacePart, of: Kind | Operation | None, *fields: str | None) -> list[Feature]:
    return [Feature(Version.parse(since), part, of, field) for field in fields]


FEATURES: Final = (
    *_row("1.1.1", "configuration", None, "mode"),
    *_row("1.2.0", "configuration", None, "topicPrefix", "disableSubscribe"),
    *_row("1.3.0", "report", Kind.HEARTBEAT, "lastCount"),
    *_row("2.0.0", "response", None, "responseTime", "origin", "route", "extenderId", "extenderRoute"),
    *_row("2.0.0", "request", Operation.WRITE_DECODED, "ext"),
    *_row("2.0.1", "response", Operation.APIVERSION, "responseTime", "origin", "route"),
    *_row("2.1.0", "request", None, "extenderId"),
    *_row("2.2.0", "request", None, "accessType", "publicKey", "key"),
    *_row("2.4.0", "request", Operation.ACK, None),
    *_row("2.4.0", "request", Operation.ACK_DECODED, None),
)
"""version-1 to version-8. What has no row has always been there."""

_SINCE = {feature[1:]: feature.since for feature in FEATURES}


def find_first_version(
    part: InterfacePart, message: Kind | Operation | None, field: str | None
) -> Version | None:
    """The version that brought a field or, with None as field, an operation; None: always there."""
    return _SINCE.get((part, message, field)) or _SINCE.get((part, None, field))


def is_supported(
    part: InterfacePart, message: Kind | Operation | None, field: str | None, version: Version
) -> bool:
    """Whether a gateway of this version knows the field or operation."""
    return (find_first_version(part, message, field) or version) <= version


@lru_cache
def list_unsupported_fields(
    part: InterfacePart, message: Kind | Operation, version: Version | None
) -> frozenset[str]:
    """The fields that a gateway of this version does not have (version-14, version-15)."""
    if version is None:
        return frozenset()
    names = {
        feature.field for feature in FEATURES if feature.part == part and feature.message in (message, None)
    }
    return frozenset(name for name in names if name and not is_supported(part, message, name, version))


def check_operation_supported(operation: Operation, parameters: frozenset[str], version: Version) -> None:
    """Refuse what the gateway does not know, before anything is sent (version-12)."""
    for name in (None, *sorted(parameters)):
        first = find_first_version("request", operation, name)
        if first and version < first:
            what = str(operation) if name is None else f"{name} in {operation}"
            raise GatewayTooOld(what, first, version)
