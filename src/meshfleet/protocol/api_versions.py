"""Table of the gateway interface version that introduced each field, parameter and operation."""

from __future__ import annotations

from functools import lru_cache
from typing import Final, Literal, NamedTuple

from meshfleet.errors.protocol import GatewayTooOld
from meshfleet.protocol.codes import Kind, Operation
from meshfleet.protocol.ids import Version

InterfacePart = Literal["report", "request", "response", "configuration"]

LATEST_VERSION: Final = Version(2, 4, 0)
"""Latest interface version of gateways that this code supports."""
ASSUMED_VERSION: Final = Version(1, 2, 0)
"""Interface version assumed for a gateway until the gateway reports its version (version-11)."""


class Feature(NamedTuple):
    """Field, parameter or operation of the gateway interface, and the version that introduced it."""

    since: Version
    part: InterfacePart
    message: Kind | Operation | None
    """Report kind or operation that has the field. None for all report kinds or operations, except those for
    which another row has the same field."""
    field: str | None
    """Name of the field or parameter; None if the feature is the operation itself."""


def _build_features(
    since: str, part: InterfacePart, message: Kind | Operation | None, *fields: str | None
) -> list[Feature]:
    """Build a row of the table for each of `fields`; the interface version `since` introduced all of them."""
    return [Feature(Version.parse(since), part, message, field) for field in fields]


FEATURES: Final = (
    *_build_features("1.1.1", "configuration", None, "mode"),
    *_build_features("1.2.0", "configuration", None, "topicPrefix", "disableSubscribe"),
    *_build_features("1.3.0", "report", Kind.HEARTBEAT, "lastCount"),
    *_build_features(
        "2.0.0", "response", None, "responseTime", "origin", "route", "extenderId", "extenderRoute"
    ),
    *_build_features("2.0.0", "request", Operation.WRITE_DECODED, "ext"),
    *_build_features("2.0.1", "response", Operation.APIVERSION, "responseTime", "origin", "route"),
    *_build_features("2.1.0", "request", None, "extenderId"),
    *_build_features("2.2.0", "request", None, "accessType", "publicKey", "key"),
    *_build_features("2.4.0", "request", Operation.ACK, None),
    *_build_features("2.4.0", "request", Operation.ACK_DECODED, None),
)
"""Features that later interface versions added (version-1 to version-8). Other features always existed."""

_FIRST_VERSIONS = {feature[1:]: feature.since for feature in FEATURES}


def find_first_version(
    part: InterfacePart, message: Kind | Operation | None, field: str | None
) -> Version | None:
    """Return the interface version that introduced a field, or an operation if `field` is None.

    Return None if the field or operation has always existed.
    """
    return _FIRST_VERSIONS.get((part, message, field)) or _FIRST_VERSIONS.get((part, None, field))


def is_supported(
    part: InterfacePart, message: Kind | Operation | None, field: str | None, version: Version
) -> bool:
    """Return whether a gateway of this version knows a field of a message.

    If `field` is None, return whether the gateway knows the operation `message`.
    """
    return (find_first_version(part, message, field) or version) <= version


@lru_cache
def list_unsupported_fields(
    part: InterfacePart, message: Kind | Operation, version: Version | None
) -> frozenset[str]:
    """Return the fields of a message that a gateway of this version does not know (version-14, version-15).

    Return an empty set if `version` is None.
    """
    if version is None:
        return frozenset()
    names = {
        feature.field for feature in FEATURES if feature.part == part and feature.message in (message, None)
    }
    return frozenset(name for name in names if name and not is_supported(part, message, name, version))


def check_operation_supported(operation: Operation, parameters: frozenset[str], version: Version) -> None:
    """Raise `GatewayTooOld` if a gateway of this version lacks the operation or a parameter (version-12)."""
    for name in (None, *sorted(parameters)):
        first_version = find_first_version("request", operation, name)
        if first_version and version < first_version:
            feature = str(operation) if name is None else f"{name} in {operation}"
            raise GatewayTooOld(feature, first_version, version)
