"""The filters of samples, series and links in a query (rest-80 to rest-83, rest-85, rest-88)."""

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Annotated, Final

from litestar.di import NamedDependency as Given
from litestar.params import QueryParameter
from msgspec import Struct

from meshfleet.db.samples.sample import DAY, Identity, Sample, SampleKind, Wanted
from meshfleet.errors import MalformedText
from meshfleet.service.clock import Now
from meshfleet.service.http.parameters import FromText, ToText
from meshfleet.service.http.query_reader import QueryReader, one_of
from meshfleet.service.telemetry.identifiers import parse_asked
from meshfleet.service.telemetry.rows import KINDS
from meshfleet.service.telemetry.series import Grid
from meshfleet.wire.identifiers.numbers import identifier_number
from meshfleet.wire.ids import IdentifierName, Mac, mac_number
from meshfleet.wire.rest import DEFAULT_POINTS, MAX_POINTS, MIN_POINTS, parse_points
from meshfleet.wire.times import parse_millis, to_millis
from meshfleet.wire.topics import AnyIdentifier

_FIRST: Final = to_millis(datetime.min.replace(tzinfo=UTC))
_END: Final = to_millis(datetime.max.replace(tzinfo=UTC)) + 1
"""All times that can be written."""

_NUMERIC: Final = frozenset({SampleKind.PROPERTY, SampleKind.MEASUREMENT, SampleKind.EVENT})
"""The kinds of which a series is made (rest-182)."""

LINKS: Final = frozenset({SampleKind.LINK})

_kind = one_of(KINDS)

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
        return Wanted(device=mac_number(device), kinds=LINKS, since=self.grid.since, until=self.grid.until)

    def chosen(self, minutes: Iterable[Sample]) -> list[Sample]:
        """Return those of the minutes that begin in this time."""
        return [each for each in minutes if self.grid.since <= each.time < self.grid.until]


def choose_samples(
    kind: KindTexts = None,
    identifier: IdentifierText = None,
    since: FromText = None,
    until: ToText = None,
) -> SampleChoice:
    """Read the filters of a list, or tell all that is wrong with them."""
    reader = QueryReader()
    chosen = SampleChoice(
        kinds=tuple(
            sorted({reader.read(_kind, each, "Kind", unless=SampleKind.EVENT) for each in kind or KINDS})
        ),
        identifier=reader.read(_number, identifier, "Identifier", unless=None),
        since=reader.read(parse_millis, since, "From", unless=_FIRST),
        until=reader.read(parse_millis, until, "To", unless=_END),
    )
    reader.check_span(chosen.since, chosen.until)
    reader.end()
    return chosen


def choose_series(
    now: Given[Now],
    identifier: NeededIdentifierText = None,
    since: FromText = None,
    until: ToText = None,
    points: PointsText = None,
) -> SeriesChoice:
    """Read what a series is made of, or tell all that is wrong; without times, the last day (rest-183)."""
    reader = QueryReader()
    asked = reader.read(_needed, identifier or "", "Identifier", unless=_WRONG)
    return SeriesChoice(identifier=asked, grid=_grid(reader, now(), since, until, points))


def choose_links(
    now: Given[Now], since: FromText = None, until: ToText = None, points: PointsText = None
) -> LinkChoice:
    """Read of which time links are, or tell all that is wrong; without times, the last day (rest-88)."""
    return LinkChoice(grid=_grid(QueryReader(), now(), since, until, points))


def _grid(reader: QueryReader, now: int, since: str | None, until: str | None, points: str | None) -> Grid:
    """The last of what is read: after it, nothing is wrong with the request."""
    end = reader.read(parse_millis, until, "To", unless=now)
    first = reader.read(parse_millis, since, "From", unless=max(end - DAY, _FIRST))
    parts = reader.read(parse_points, points, "Points", unless=DEFAULT_POINTS)
    reader.check_span(first, end)
    reader.end()
    return Grid.over(first, end, parts=parts)


def _number(text: str, field: str) -> int:
    return identifier_number(parse_asked(text, field))


def _needed(text: str, field: str) -> AnyIdentifier:
    if not text:
        raise MalformedText(field, "is missing")
    return parse_asked(text, field)
