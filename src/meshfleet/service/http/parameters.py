"""Query parameters that several lists share."""

from typing import Annotated

from litestar.params import Parameter

from meshfleet.wire.rest import DEFAULT_RESULTS, MAX_RESULTS, MIN_RESULTS

MaxResults = Annotated[
    int,
    Parameter(
        query="MaxResults",
        ge=MIN_RESULTS,
        le=MAX_RESULTS,
        default=DEFAULT_RESULTS,
        description="How many items a page may hold.",
    ),
]

NextToken = Annotated[
    str | None,
    Parameter(query="NextToken", description="The `nextToken` of the page before, with the same filters."),
]
