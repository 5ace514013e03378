"""Query parameters of the routes for samples, series and links (rest-80 to rest-83, rest-85, rest-88)."""

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Annotated, Final

from litestar.di import NamedDependency as Given
from litestar.params import QueryParameter
from msgspec import Struct

from meshfleet.db.samples.sample import DAY_MS, SampleIdentity, SampleKind, SampleQuery, StoredSample
from meshfleet.errors.protocol import MalformedText
from meshfleet.protocol.identifiers.numbers import identifier_to_int
from meshfleet.protocol.ids import IdentifierName, Mac, mac_to_int
from meshfleet.protocol.times import parse_millis, to_millis
from meshfleet.protocol.topics import AnyIdentifier
from meshfleet.rest.telemetry import DEFAULT_POINTS, MAX_POINTS, MIN_POINTS, parse_points
from meshfleet.service.clock import Now
from meshfleet.service.http.query import FromTime, QueryReader, ToTime, build_choice_parser
from meshfleet.service.telemetry.aggregation import TimeGrid
from meshfleet.service.telemetry.identifiers import parse_any_identifier
from meshfleet.service.telemetry.rest_sample import KINDS_BY_NAME

_MIN_TIME: Final = to_millis(datetime.min.replace(tzinfo=UTC))
"""Earliest time that `datetime` can represent (start of year 1), as Unix time in milliseconds."""
_TIME_END: Final = to_millis(datetime.max.replace(tzinfo=UTC)) + 1
"""First time after those that `datetime` can represent (start of year 10000), in Unix milliseconds."""

_NUMERIC_KINDS: Final = frozenset({SampleKind.PROPERTY, SampleKind.MEASUREMENT, SampleKind.EVENT})
"""Sample kinds with numeric values, which are part of an aggregated series (rest-182)."""

LINK_KINDS: Final = frozenset({SampleKind.LINK, SampleKind.HEARTBEAT})
"""Kinds of the minute roll-ups that tell about links; heartbeats tell how many of them were lost."""

_parse_kind = build_choice_parser(KINDS_BY_NAME)

_INVALID_IDENTIFIER: Final[AnyIdentifier] = IdentifierName("")
"""Placeholder for an invalid identifier until all errors of the query are raised together."""

KindTexts = Annotated[
    list[str] | None,
    QueryParameter(
        name="Kind",
        description="Kind of samples to include; may be repeated.",
        schema_extra={"items": {"type": "string", "enum": list(KINDS_BY_NAME)}},
    ),
]
IdentifierText = Annotated[
    str | None,
    QueryParameter(
        name="Identifier", description="Hex identifier of the samples, such as `8800`, or its name."
    ),
]
RequiredIdentifierText = Annotated[
    str | None,
    QueryParameter(
        name="Identifier",
        description="Hex identifier of the samples, such as `8800`, or its name. Required.",
    ),
]
PointsText = Annotated[
    str | None,
    QueryParameter(
        name="Points",
        description=f"Number of buckets into which the time range is divided; default {DEFAULT_POINTS}.",
        schema_extra={"type": "integer", "minimum": MIN_POINTS, "maximum": MAX_POINTS},
    ),
]


class SampleSelection(Struct, frozen=True, kw_only=True):
    """Filter of a list of samples. Times are Unix times in milliseconds."""

    kinds: tuple[SampleKind, ...]
    identifier: int | None
    """Identifier as a stored integer; None for all identifiers."""
    since: int
    """Earliest time of the samples (inclusive)."""
    until: int
    """Latest time of the samples (exclusive)."""

    def to_query(
        self, device: Mac, *, newest_first: bool, after: SampleIdentity | None = None
    ) -> SampleQuery:
        """Build the query that reads the samples of a device that match this filter."""
        return SampleQuery(
            device=mac_to_int(device),
            kinds=frozenset(self.kinds),
            identifier=self.identifier,
            since=self.since,
            until=self.until,
            newest_first=newest_first,
            after=after,
        )


class SeriesSelection(Struct, frozen=True, kw_only=True):
    """Parameters of an aggregated series: its identifier, and the time range divided into buckets."""

    identifier: AnyIdentifier
    grid: TimeGrid

    def to_query(self, device: Mac) -> SampleQuery:
        """Build the query that reads the samples of this series from the sample store."""
        return SampleQuery(
            device=mac_to_int(device),
            kinds=_NUMERIC_KINDS,
            identifier=identifier_to_int(self.identifier),
            since=self.grid.since,
            until=self.grid.until,
        )


class LinkSelection(Struct, frozen=True, kw_only=True):
    """Parameters of a query for radio links: the time range divided into buckets."""

    grid: TimeGrid

    def to_query(self, device: Mac) -> SampleQuery:
        """Build the query that reads the minute roll-ups of a device's links in the time range."""
        return SampleQuery(
            device=mac_to_int(device), kinds=LINK_KINDS, since=self.grid.since, until=self.grid.until
        )

    def filter_minutes(self, minutes: Iterable[StoredSample]) -> list[StoredSample]:
        """Return the minute roll-ups that start within the time range."""
        return [minute for minute in minutes if self.grid.since <= minute.time < self.grid.until]


def parse_sample_selection(
    kind: KindTexts = None,
    identifier: IdentifierText = None,
    since: FromTime = None,
    until: ToTime = None,
) -> SampleSelection:
    """Parse the query parameters of a sample list. Raise `InvalidRequest` with all errors at once."""
    reader = QueryReader()
    selection = SampleSelection(
        kinds=tuple(
            sorted(
                {
                    reader.read(_parse_kind, name, "Kind", default=SampleKind.EVENT)
                    for name in kind or KINDS_BY_NAME
                }
            )
        ),
        identifier=reader.read(_parse_identifier_number, identifier, "Identifier", default=None),
        since=reader.read(parse_millis, since, "From", default=_MIN_TIME),
        until=reader.read(parse_millis, until, "To", default=_TIME_END),
    )
    reader.check_span(selection.since, selection.until)
    reader.raise_faults()
    return selection


def parse_series_selection(
    now: Given[Now],
    identifier: RequiredIdentifierText = None,
    since: FromTime = None,
    until: ToTime = None,
    points: PointsText = None,
) -> SeriesSelection:
    """Parse the query parameters of a series. Raise `InvalidRequest` with all errors at once.

    Without `From` and `To`, the time range is the last day (rest-183).
    """
    reader = QueryReader()
    parsed_identifier = reader.read(
        _parse_required_identifier, identifier or "", "Identifier", default=_INVALID_IDENTIFIER
    )
    return SeriesSelection(
        identifier=parsed_identifier, grid=_parse_grid(reader, now(), since, until, points)
    )


def parse_link_selection(
    now: Given[Now], since: FromTime = None, until: ToTime = None, points: PointsText = None
) -> LinkSelection:
    """Parse the query parameters of radio links. Raise `InvalidRequest` with all errors at once.

    Without `From` and `To`, the time range is the last day (rest-88).
    """
    return LinkSelection(grid=_parse_grid(QueryReader(), now(), since, until, points))


def _parse_grid(
    reader: QueryReader, now: int, since: str | None, until: str | None, points: str | None
) -> TimeGrid:
    """Parse the time range and number of buckets. Raise all errors that `reader` has collected so far."""
    end = reader.read(parse_millis, until, "To", default=now)
    start = reader.read(parse_millis, since, "From", default=max(end - DAY_MS, _MIN_TIME))
    parts = reader.read(parse_points, points, "Points", default=DEFAULT_POINTS)
    reader.check_span(start, end)
    reader.raise_faults()
    return TimeGrid.divide(start, end, parts=parts)


def _parse_identifier_number(text: str, field: str) -> int:
    return identifier_to_int(parse_any_identifier(text, field))


def _parse_required_identifier(text: str, field: str) -> AnyIdentifier:
    if not text:
        raise MalformedText(field, "is missing")
    return parse_any_identifier(text, field)
