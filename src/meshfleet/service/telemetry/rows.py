"""Samples as they are shown (rest-81)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from meshfleet.db.samples.sample import NO_SEQ, Clock, More, SampleKind
from meshfleet.service.telemetry.identifiers import title
from meshfleet.wire import rest
from meshfleet.wire.ids import number_mac
from meshfleet.wire.times import write_millis

if TYPE_CHECKING:
    from collections.abc import Mapping

    from meshfleet.db.samples.sample import Sample

KINDS: Final[Mapping[str, SampleKind]] = {
    "property": SampleKind.PROPERTY,
    "measurement": SampleKind.MEASUREMENT,
    "measurement-error": SampleKind.MEASUREMENT_ERROR,
    "event": SampleKind.EVENT,
}
"""The kinds that clients know (rest-82). What the service makes of other reports is not among them."""

WORDS: Final[Mapping[int, Any]] = {kind: word for word, kind in KINDS.items()}
"""The same the other way round."""

_CLOCKS: Final[Mapping[int | None, Any]] = {
    None: None,
    Clock.FUTURE: "future",
    Clock.PAST: "past",
    Clock.CORRECTED: None,
}

_EXACT: Final = 2**53
"""Below this a float can hold every whole number."""

_NO_MORE: Final = More()


def shown(sample: Sample, foreign: Mapping[int, str]) -> rest.Sample:
    """A sample for clients; `foreign` are the names that the catalogue does not know."""
    called = title(sample.identifier, foreign)
    more = sample.more or _NO_MORE
    return rest.Sample(
        time=write_millis(sample.time),
        kind=WORDS[sample.kind],
        identifier=called.identifier,
        name=called.name,
        seq=None if sample.seq == NO_SEQ else sample.seq,
        value=_number(sample.number) if more.text is None else _embedded(more.text),
        raw=None if sample.raw is None else sample.raw.hex(),
        ext=None if more.ext is None else _embedded(more.ext),
        error=more.error,
        error_ext=more.error_ext,
        gateway=number_mac(sample.gateway),
        clock=_CLOCKS[more.clock],
        corrected_time=msgspec.UNSET if more.shift is None else write_millis(sample.time + more.shift),
    )


def plain_number(number: float) -> float | int:
    """A number as it is written: whole where it is whole, and no digits that it does not have (rest-180)."""
    return int(number) if abs(number) < _EXACT and number == int(number) else float(number)


def _number(number: float | None) -> float | int | None:
    return None if number is None else plain_number(number)


def _embedded(text: str) -> Any:
    """JSON to stand in an answer as it is: nobody here needs to read it."""
    return msgspec.Raw(text.encode())
