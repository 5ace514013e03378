r"""Encodes samples in InfluxDB's line protocol, one line for each sample.

    meshfleet,device=ca5bda180004,name=Cold\ room,gateway=02005e000001,kind=event motion=1.0,seq=7i NS

Names of devices and identifiers come from users and gateways, so they are escaped. Line protocol cannot
express line breaks in tags and field names, so these become spaces, nor a backslash at the end of a name, so
that is removed.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import msgspec

from meshfleet.db.samples.sample import NO_SEQ, SampleExtras, SampleKind, StoredSample
from meshfleet.protocol.ids import mac_from_int

if TYPE_CHECKING:
    from collections.abc import Mapping

MEASUREMENT: Final = "meshfleet"

KIND_NAMES: Final[Mapping[int, str]] = {
    SampleKind.PROPERTY: "property",
    SampleKind.MEASUREMENT: "measurement",
    SampleKind.MEASUREMENT_ERROR: "measurement-error",
    SampleKind.EVENT: "event",
}

_UNPRINTABLE: Final = re.compile(r"[\x00-\x1f\x7f\x85\u2028\u2029]")
_TAG_SPECIAL: Final = re.compile(r"[,= ]")
_TEXT_SPECIAL: Final = re.compile(r'["\\]')
_ESCAPED: Final = r"\\\g<0>"

_NANOSECONDS_PER_MILLISECOND: Final = 1_000_000
_NO_EXTRAS: Final = SampleExtras()


def encode_line(sample: StoredSample, device: int, *, device_name: str, identifier: str) -> bytes | None:
    """Encode a sample of a device as one line, without the line break at the end.

    Return None if the sample has no value or no plausible time. `device` is a MAC in integer form.
    `identifier` is a name, or the hex id of an identifier without a name. A corrected time replaces the
    reported time.
    """
    extras = sample.more or _NO_EXTRAS
    fields = _encode_value(sample, extras, _escape_tag(identifier))
    if not fields or not extras.has_plausible_time:
        return None
    if sample.seq != NO_SEQ:
        fields += f",seq={sample.seq}i"
    tags = {
        "device": mac_from_int(device),
        "name": _escape_tag(device_name),
        "gateway": mac_from_int(sample.gateway),
        "kind": KIND_NAMES[sample.kind],
    }
    encoded_tags = "".join(f",{name}={value}" for name, value in tags.items() if value)  # none may be empty
    time = (sample.time + (extras.shift or 0)) * _NANOSECONDS_PER_MILLISECOND
    return f"{MEASUREMENT}{encoded_tags} {fields} {time}".encode()


def _encode_value(sample: StoredSample, extras: SampleExtras, name: str) -> str:
    """Encode the value of a sample as the field NAME=VALUE; empty if the sample has no value.

    The field of an error is NAME_error, of a text NAME_text, and of a value that is not decoded NAME_raw. All
    numbers are floats, because InfluxDB requires that all values of a field have the same type.
    """
    if extras.error is not None:
        return f"{name}_error={extras.error}i"
    if extras.text is not None:
        value = msgspec.json.decode(extras.text)
        if isinstance(value, bool):
            return f"{name}={str(value).lower()}"
        if value is not None:
            return f'{name}_text="{_escape_text(value if isinstance(value, str) else extras.text)}"'
    if sample.number is not None:
        return f"{name}={float(sample.number)!r}"
    return "" if sample.raw is None else f'{name}_raw="{sample.raw.hex()}"'


def _escape_tag(text: str) -> str:
    """Escape the value of a tag, or the name of a field. Replace characters that cannot be escaped."""
    clean = _UNPRINTABLE.sub(" ", text).rstrip("\\")
    return _TAG_SPECIAL.sub(_ESCAPED, clean)


def _escape_text(text: str) -> str:
    """Escape a text for a field value in quotes. Replace control characters by spaces."""
    return _TEXT_SPECIAL.sub(_ESCAPED, _UNPRINTABLE.sub(" ", text))
