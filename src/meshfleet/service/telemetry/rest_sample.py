"""Converts stored samples to the JSON objects of the REST API (rest-81)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from meshfleet.db.samples.sample import NO_SEQ, ClockFlag, SampleExtras, SampleKind, StoredSample
from meshfleet.protocol.ids import mac_from_int
from meshfleet.protocol.times import format_millis
from meshfleet.rest.telemetry import ExportedSample, Sample
from meshfleet.service.telemetry.identifiers import describe_identifier

if TYPE_CHECKING:
    from collections.abc import Mapping

    from meshfleet.protocol.ids import Mac

KINDS_BY_NAME: Final[Mapping[str, SampleKind]] = {
    "property": SampleKind.PROPERTY,
    "measurement": SampleKind.MEASUREMENT,
    "measurement-error": SampleKind.MEASUREMENT_ERROR,
    "event": SampleKind.EVENT,
}
"""Sample kinds by their name in the REST API (rest-82), without the kinds of minute roll-ups."""

NAMES_BY_KIND: Final[Mapping[int, Any]] = {kind: name for name, kind in KINDS_BY_NAME.items()}
"""Names in the REST API by sample kind."""

_CLOCK_NAMES: Final[Mapping[int | None, Any]] = {
    None: None,
    ClockFlag.FUTURE: "future",
    ClockFlag.PAST: "past",
    ClockFlag.CORRECTED: None,
}

_MAX_EXACT_INTEGER: Final = 2**53
"""Whole numbers with a smaller absolute value than this are exact as floats."""

_NO_EXTRAS: Final = SampleExtras()


def to_rest_sample(sample: StoredSample, foreign: Mapping[int, str]) -> Sample:
    """Convert a stored sample for REST. `foreign` has the identifier names that are not in the catalogue."""
    title = describe_identifier(sample.identifier, foreign)
    extras = sample.more or _NO_EXTRAS
    return Sample(
        time=format_millis(sample.time),
        kind=NAMES_BY_KIND[sample.kind],
        identifier=title.identifier,
        name=title.name,
        seq=None if sample.seq == NO_SEQ else sample.seq,
        value=_format_optional(sample.number) if extras.text is None else _embed_json(extras.text),
        raw=None if sample.raw is None else sample.raw.hex(),
        ext=None if extras.ext is None else _embed_json(extras.ext),
        error=extras.error,
        error_ext=extras.error_ext,
        gateway=mac_from_int(sample.gateway),
        clock=_CLOCK_NAMES[extras.clock],
        corrected_time=msgspec.UNSET if extras.shift is None else format_millis(sample.time + extras.shift),
    )


def to_exported_sample(
    sample: StoredSample, foreign: Mapping[int, str], device: Mac, device_name: str
) -> ExportedSample:
    """Convert a stored sample for an export, with its device. `foreign` is that of `to_rest_sample`."""
    fields = msgspec.structs.asdict(to_rest_sample(sample, foreign))
    return ExportedSample(**fields, device=device, device_name=device_name)


def format_number(number: float) -> float | int:
    """Return a whole number as int, so that JSON has no fraction, and other numbers as float (rest-180)."""
    return int(number) if abs(number) < _MAX_EXACT_INTEGER and number == int(number) else float(number)


def _format_optional(number: float | None) -> float | int | None:
    return None if number is None else format_number(number)


def _embed_json(text: str) -> Any:
    """Wrap stored JSON text so that the JSON encoder copies it into the response unchanged."""
    return msgspec.Raw(text.encode())
