"""What the fields of payloads mean, for people: units, defaults, and the numbers that stand for something."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from meshfleet.wire.codes import Status

if TYPE_CHECKING:
    from collections.abc import Mapping
    from enum import Enum


def named(values: type[Enum]) -> str:
    """Tell which number stands for what."""
    return ", ".join(
        f"`{each.value}` {each.name.lower().replace('_', ' ')}"
        for each in sorted(values, key=lambda each: each.value)
    )


_STATUSES: Final = f"{named(Status)}; others pass through as they are"
_UNIT: Final = "the identifier says in which unit"

_MEANINGS: Final[Mapping[str, str]] = {
    "time": "When it was.",
    "seq": "Counts the reports of this device, kind and identifier, from 0 to 255 and over again.",
    "status": "How the device is: 0 is fine, anything else an error or a warning of the device.",
    "lastCount": "How many copies of the heartbeat before were heard.",
    "parent": "The MAC of the mesh node that heard the device.",
    "rssi": "How strong the device was heard, in dBm.",
    "channel": "The BLE advertising channel on which it was heard.",
    "unreachable": "True: the device cannot be reached through this parent.",
    "value": f"The value, as any JSON; {_UNIT}.",
    "ext": "The extension of the value, where it has one.",
    "error": f"Why the measurement failed: {_STATUSES}.",
    "errorExt": "More about the error; only the device knows what it means.",
    "id": "Chosen by whoever asks, and unique there; the response has the same.",
    "priority": "How urgent the request and its response are on their way through the mesh.",
    "extenderId": "The MAC of the extender through which an unconnected device is reached.",
    "accessType": "How a device outside the secure network is reached.",
    "publicKey": "The public key for a device that is not provisioned, as hex.",
    "key": "The network key, as hex. It is never stored, logged or shown.",
    "type": "What becomes of the samples that the device still holds.",
    "responseTime": "How long it took to answer, in milliseconds.",
    "origin": "Who answered: the target itself, connected or not, or an extender or the gateway for it.",
    "errorMessage": "Why it failed, for people. It may change at any time: decide nothing by it.",
    "route": "The way to the connected target that answered: MACs, first hop first, joined by `-`.",
    "extenderRoute": "The way to that extender, spelt like `route`.",
    "modelNumber": "The model number of the firmware.",
    "version": "The version of the messaging interface that the gateway speaks.",
    "firmwareType": "How the image is packed.",
    "uri": "Where the image can be downloaded, for a short time.",
    "fileName": "The name of the image.",
    "sha256": "The SHA-256 of what is behind `uri`, as hex.",
    "size": "The size of what is behind `uri`, in bytes.",
}

_RAW: Final = "The bytes of the value, as hex; the catalogue of identifiers says what they mean."
_STATUS: Final = f"How the request went: {_STATUSES}."
_ANSWERED: Final = "When the response was made."

_OF: Final[Mapping[tuple[str, str], str]] = {
    ("Heartbeat", "seq"): "Counts the heartbeats of this device, from 0 to 255 and over again.",
    ("Rssi", "seq"): "The number of the advertisement that was heard, from 0 to 255.",
    ("Property", "value"): _RAW,
    ("Measurement", "value"): _RAW,
    ("Event", "value"): f"{_RAW} Only some events have one.",
    ("EventDecoded", "value"): f"The value, as any JSON; {_UNIT}. Only some events have one.",
    ("Write", "value"): "The bytes to write, as hex. Null, empty text or nothing writes NULL (no value), "
    "which is how a command property is set off.",
    ("WriteDecoded", "value"): f"The value to write, as any JSON; {_UNIT}. Null or nothing writes NULL "
    "(no value), which is how a command property is set off.",
    ("Ack", "time"): "The `time` of the sample that is acknowledged, cut to milliseconds.",
    ("Ack", "id"): "As in every request; there is no response to an ack.",
    ("ReadResponse", "value"): f"{_RAW} Always there when `status` is 0.",
    ("ReadDecodedResponse", "value"): f"The value, as any JSON; {_UNIT}. Always there when `status` is 0.",
    ("FirmwareQuestion", "version"): "The version of the firmware.",
    **{
        (response, field): text
        for response in ("Response", "ApiVersionResponse", "ReadResponse", "ReadDecodedResponse")
        for field, text in (
            ("time", _ANSWERED),
            ("status", _STATUS),
            ("id", "The `id` of the request, when it had one."),
            ("extenderId", "The MAC of the extender that reached the unconnected target."),
        )
    },
}
"""Where a field means something of its own in one payload."""


def meaning_of(payload: str, field: str) -> str:
    """What a field of a payload means."""
    return _OF.get((payload, field)) or _MEANINGS[field]
