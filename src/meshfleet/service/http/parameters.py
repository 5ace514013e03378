"""Query parameters that several lists share.

They are texts for Litestar, and read by our own rules: its own would take `1.0` for a whole number and
`null` for nothing at all.
"""

from typing import Annotated

from litestar.params import QueryParameter

from meshfleet.errors import Fault, InvalidRequest, MalformedPayload
from meshfleet.wire.rest import DEFAULT_RESULTS, MAX_RESULTS, MIN_RESULTS, parse_max_results

MaxResults = Annotated[
    str | None,
    QueryParameter(
        name="MaxResults",
        description=f"How many items a page may hold; {DEFAULT_RESULTS} unless set.",
        schema_extra={"type": "integer", "minimum": MIN_RESULTS, "maximum": MAX_RESULTS},
    ),
]

NextToken = Annotated[
    str | None,
    QueryParameter(
        name="NextToken",
        description="The `nextToken` of the page before, with the same filters.",
        schema_extra={"type": "string"},
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


def read_limit(max_results: MaxResults = None) -> int:
    """How many items a page may hold (rest-23)."""
    try:
        return DEFAULT_RESULTS if max_results is None else parse_max_results(max_results)
    except MalformedPayload as exc:
        raise InvalidRequest([Fault(exc.field, exc.reason)]) from None
