"""Samples as they are shown (rest-81)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from meshfleet import rest
from meshfleet.db.samples.sample import NO_SEQ, ClockFlag, SampleExtras, SampleKind
from meshfleet.protocol.ids import mac_from_int
from meshfleet.protocol.times import format_millis
from meshfleet.service.telemetry.identifiers import describe_identifier

if TYPE_CHECKING:
    from collections.abc import Mapping

    from meshfleet.db.samples.sample import StoredSample

KINDS_BY_NAME: Final[Mapping[str, SampleKind]] = {
    "property": SampleKind.PROPERTY,
    "measurement": SampleKind.MEASUREMENT,
    "measurement-error": SampleKind.MEASUREMENT_ERROR,
    "event": SampleKind.EVENT,
}
"""The kinds that clients know (rest-82). What the service makes of other reports is not among them."""

NAMES_BY_KIND: Final[Mapping[int, Any]] = {kind: word for word, kind in KINDS_BY_NAME.items()}
"""The same the other way round."""

_CLOCK_NAMES: Final[Mapping[int | None, Any]] = {
    None: None,
    ClockFlag.FUTURE: "future",
    ClockFlag.PAST: "past",
    ClockFlag.CORRECTED: None,
}

_MAX_EXACT_INTEGER: Final = 2**53
"""Below this a float can hold every whole number."""

_NO_EXTRAS: Final = SampleExtras()


def to_rest_sample(sample: StoredSample, foreign: Mapping[int, str]) -> rest.Sample:
    """A sample for clients; `foreign` are the names that the catalogue does not know."""
    called = describe_identifier(sample.identifier, foreign)
    more = sample.more or _NO_EXTRAS
    return rest.Sample(
        time=format_millis(sample.time),
        kind=NAMES_BY_KIND[sample.kind],
        identifier=called.identifier,
        name=called.name,
        seq=None if sample.seq == NO_SEQ else sample.seq,
        value=_format_optional(sample.number) if more.text is None else _embed_json(more.text),
        raw=None if sample.raw is None else sample.raw.hex(),
        ext=None if more.ext is None else _embed_json(more.ext),
        error=more.error,
        error_ext=more.error_ext,
        gateway=mac_from_int(sample.gateway),
        clock=_CLOCK_NAMES[more.clock],
        corrected_time=msgspec.UNSET if more.shift is None else format_millis(sample.time + more.shift),
    )


def format_number(number: float) -> float | int:
    """A number as it is written: whole where it is whole, and no digits that it does not have (rest-180)."""
    return int(number) if abs(number) < _MAX_EXACT_INTEGER and number == int(number) else float(number)


def _format_optional(number: float | None) -> float | int | None:
    return None if number is None else format_number(number)


def _embed_json(text: str) -> Any:
    """JSON to stand in an answer as it is: nobody here needs to read it."""
    return msgspec.Raw(text.encode())
