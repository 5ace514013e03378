"""The variable levels of topics: gateways, devices, and what the catalogue knows for each use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from meshfleet.service.asyncapi.examples import DEVICE, GATEWAY
from meshfleet.wire.codes import Kind, Operation
from meshfleet.wire.identifiers import BUILTIN, Access, Entry, IdentifierKind
from meshfleet.wire.ids import EVERY_GATEWAY

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

PLACES: Final[Mapping[str, dict[str, Any]]] = {
    "gateway": {
        "description": "The MAC of the gateway: 12 lower-case hex digits.",
        "examples": [GATEWAY],
    },
    "device": {
        "description": "The MAC of the device: 12 lower-case hex digits. A gateway is a device too.",
        "examples": [DEVICE, GATEWAY],
    },
    "deviceOrEveryGateway": {
        "description": "The MAC of the device: 12 lower-case hex digits. "
        f"`{EVERY_GATEWAY}` is each gateway itself.",
        "examples": [DEVICE, EVERY_GATEWAY],
    },
}


def _is(*kinds: IdentifierKind) -> Callable[[Entry], bool]:
    return lambda entry: not entry.kinds.isdisjoint(kinds)


def _may(access: Access) -> Callable[[Entry], bool]:
    return lambda entry: entry.access in {access, Access.READ_WRITE}


_USES: Final[Mapping[str, Callable[[Entry], bool]]] = {
    "property": _is(IdentifierKind.PROPERTY),
    "measurement": _is(IdentifierKind.MEASUREMENT),
    "event": _is(IdentifierKind.EVENT),
    "sample": _is(IdentifierKind.MEASUREMENT, IdentifierKind.EVENT),
    "readable": _may(Access.READ),
    "writable": _may(Access.WRITE),
}

_USE_OF: Final[Mapping[Kind | Operation, str]] = {
    Kind.PROPERTY: "property",
    Kind.PROPERTY_DECODED: "property",
    Kind.MEASUREMENT: "measurement",
    Kind.MEASUREMENT_DECODED: "measurement",
    Kind.MEASUREMENT_ERROR: "measurement",
    Kind.MEASUREMENT_ERROR_DECODED: "measurement",
    Kind.EVENT: "event",
    Kind.EVENT_DECODED: "event",
    Operation.READ: "readable",
    Operation.READ_DECODED: "readable",
    Operation.WRITE: "writable",
    Operation.WRITE_DECODED: "writable",
    Operation.ACK: "sample",
    Operation.ACK_DECODED: "sample",
}


def identifier_of(word: Kind | Operation) -> str:
    """The name of the parameter that stands behind a kind or an operation."""
    return f"{_USE_OF[word]}{'Name' if word.decoded else 'Identifier'}"


def all_parameters() -> dict[str, dict[str, Any]]:
    """Describe all of them."""
    described = dict(PLACES)
    for use, fits in _USES.items():
        known = sorted(filter(fits, BUILTIN), key=lambda entry: entry.id)
        described[f"{use}Identifier"] = _raw(known)
        described[f"{use}Name"] = _decoded([entry for entry in known if entry.layout is not None])
    return described


def _raw(known: list[Entry]) -> dict[str, Any]:
    listed = ", ".join(f"`{entry.id}` {entry.name}" for entry in known)
    return {
        "description": f"An identifier: the lower-case hex of its 1 to 4 bytes. Known are {listed}; "
        "devices may have others.",
        "examples": [entry.id for entry in known],
    }


def _decoded(known: list[Entry]) -> dict[str, Any]:
    listed = ", ".join(f"`{entry.name}`{f' in {entry.unit}' if entry.unit else ''}" for entry in known)
    return {
        "description": f"The name of an identifier. Known are {listed}; gateways may know others.",
        "examples": [entry.name for entry in known],
    }
