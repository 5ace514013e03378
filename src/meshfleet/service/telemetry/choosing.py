"""The filters of samples, series and links in a query (rest-80 to rest-83, rest-85, rest-88)."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Annotated, Final, TypeVar

from litestar.di import NamedDependency as Given
from litestar.params import QueryParameter
from msgspec import Struct

from meshfleet.db.samples.sample import DAY, Identity, SampleKind, Wanted
from meshfleet.errors import Fault, InvalidRequest, MalformedText, WireError
from meshfleet.service.clock import Now
from meshfleet.service.telemetry.identifiers import parse_asked
from meshfleet.service.telemetry.rows import KINDS
from meshfleet.service.telemetry.series import Grid
from meshfleet.wire.identifiers.numbers import identifier_number
from meshfleet.wire.ids import IdentifierName, Mac, mac_number
from meshfleet.wire.rest import DEFAULT_POINTS, MAX_POINTS, MIN_POINTS, parse_points
from meshfleet.wire.times import parse_time, to_millis
from meshfleet.wire.topics import AnyIdentifier

Value = TypeVar("Value")

_FIRST: Final = to_millis(datetime.min.replace(tzinfo=UTC))
_END: Final = to_millis(datetime.max.replace(tzinfo=UTC)) + 1
"""All times that can be written."""

_NUMERIC: Final = frozenset({SampleKind.PROPERTY, SampleKind.MEASUREMENT, SampleKind.EVENT})
"""The kinds of which a series is made (rest-182)."""

_LINKS: Final = frozenset({SampleKind.LINK})

_WRONG: Final[AnyIdentifier] = IdentifierName("")
"""Stands for an identifier that cannot be one."""

KindTexts = Annotated[
    list[str] | None,
    QueryParameter(
        name="Kind",
        description="Is of this kind; may be given several times, then is of one of them.",
        schema_extra={"items": {"type": "string", "enum": list(KINDS)}},
    ),
]
IdentifierText = Annotated[
    str | None,
    QueryParameter(name="Identifier", description="The hex identifier, such as `8800`, or its name."),
]
NeededIdentifierText = Annotated[
    str | None,
    QueryParameter(
        name="Identifier",
        description="The hex identifier, such as `8800`, or its name. It must be given.",
    ),
]
FromText = Annotated[
    str | None,
    QueryParameter(name="From", description="Not before this time: ISO 8601, UTC unless it says otherwise."),
]
ToText = Annotated[
    str | None,
    QueryParameter(name="To", description="Before this time: ISO 8601, UTC unless it says otherwise."),
]
PointsText = Annotated[
    str | None,
    QueryParameter(
        name="Points",
        description=f"How many buckets the time is divided into; {DEFAULT_POINTS} unless set.",
        schema_extra={"type": "integer", "minimum": MIN_POINTS, "maximum": MAX_POINTS},
    ),
]


class SampleChoice(Struct, frozen=True, kw_only=True):
    """Which samples of a device are listed; all that is given must hold."""

    kinds: tuple[SampleKind, ...]
    identifier: int | None
    since: int
    until: int

    def of(self, device: Mac, *, newest_first: bool, after: Identity | None = None) -> Wanted:
        """The same for the sample store."""
        return Wanted(
            device=mac_number(device),
            kinds=frozenset(self.kinds),
            identifier=self.identifier,
            since=self.since,
            until=self.until,
            newest_first=newest_first,
            after=after,
        )


class SeriesChoice(Struct, frozen=True, kw_only=True):
    """Which series of a device is asked for, and how finely."""

    identifier: AnyIdentifier
    grid: Grid

    def of(self, device: Mac) -> Wanted:
        """What the sample store shall give for it."""
        return Wanted(
            device=mac_number(device),
            kinds=_NUMERIC,
            identifier=identifier_number(self.identifier),
            since=self.grid.since,
            until=self.grid.until,
        )


class LinkChoice(Struct, frozen=True, kw_only=True):
    """Of which time the links of a device are asked for, and how finely."""

    grid: Grid

    def of(self, device: Mac) -> Wanted:
        """What the sample store shall give for it."""
        return Wanted(device=mac_number(device), kinds=_LINKS, since=self.grid.since, until=self.grid.until)


def choose_samples(
    kind: KindTexts = None,
    identifier: IdentifierText = None,
    since: FromText = None,
    until: ToText = None,
) -> SampleChoice:
    """Read the filters of a list, or tell all that is wrong with them."""
    reading = _Reading()
    chosen = SampleChoice(
        kinds=tuple(
            sorted({reading.read(_kind, each, "Kind", unless=SampleKind.EVENT) for each in kind or KINDS})
        ),
        identifier=reading.read(_number, identifier, "Identifier", unless=None),
        since=reading.read(_millis, since, "From", unless=_FIRST),
        until=reading.read(_millis, until, "To", unless=_END),
    )
    reading.end(chosen.since, chosen.until)
    return chosen


def choose_series(
    now: Given[Now],
    identifier: NeededIdentifierText = None,
    since: FromText = None,
    until: ToText = None,
    points: PointsText = None,
) -> SeriesChoice:
    """Read what a series is made of, or tell all that is wrong; without times, the last day (rest-183)."""
    reading = _Reading()
    asked = reading.read(_needed, identifier or "", "Identifier", unless=_WRONG)
    return SeriesChoice(identifier=asked, grid=_grid(reading, now(), since, until, points))


def choose_links(
    now: Given[Now], since: FromText = None, until: ToText = None, points: PointsText = None
) -> LinkChoice:
    """Read of which time links are, or tell all that is wrong; without times, the last day (rest-88)."""
    return LinkChoice(grid=_grid(_Reading(), now(), since, until, points))


class _Reading:
    """Reads one parameter after the other, and collects what is wrong with them."""

    def __init__(self) -> None:
        self._faults: list[Fault] = []

    def read(
        self, parse: Callable[[str, str], Value], text: str | None, field: str, *, unless: Value
    ) -> Value:
        """The value of a parameter, `unless` there is none; what stands for a wrong one is never used."""
        try:
            return unless if text is None else parse(text, field)
        except WireError as exc:
            self._faults.append(Fault(exc.field, exc.reason))
            return unless

    def end(self, since: int, until: int) -> None:
        """Refuse the request if something is wrong with it, the order of its times included."""
        if not self._faults and since >= until:
            self._faults.append(Fault("From", "is not before To"))
        if self._faults:
            raise InvalidRequest(self._faults)


def _grid(reading: _Reading, now: int, since: str | None, until: str | None, points: str | None) -> Grid:
    """The last of what is read: after it, nothing is wrong with the request."""
    end = reading.read(_millis, until, "To", unless=now)
    first = reading.read(_millis, since, "From", unless=max(end - DAY, _FIRST))
    parts = reading.read(parse_points, points, "Points", unless=DEFAULT_POINTS)
    reading.end(first, end)
    return Grid.over(first, end, parts=parts)


def _kind(text: str, field: str) -> SampleKind:
    if text not in KINDS:
        raise MalformedText(field, f"is none of {', '.join(KINDS)}")
    return KINDS[text]


def _number(text: str, field: str) -> int:
    return identifier_number(parse_asked(text, field))


def _needed(text: str, field: str) -> AnyIdentifier:
    if not text:
        raise MalformedText(field, "is missing")
    return parse_asked(text, field)


def _millis(text: str, field: str) -> int:
    return to_millis(parse_time(text, field))
