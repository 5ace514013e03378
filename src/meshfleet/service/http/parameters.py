"""Query parameters that several lists share."""

from typing import Annotated

from litestar.params import QueryParameter

from meshfleet.wire.rest import MAX_RESULTS, MIN_RESULTS

MaxResults = Annotated[
    int,
    QueryParameter(
        name="MaxResults",
        ge=MIN_RESULTS,
        le=MAX_RESULTS,
        description="How many items a page may hold.",
    ),
]

NextToken = Annotated[
    str | None,
    QueryParameter(
        name="NextToken", description="The `nextToken` of the page before, with the same filters."
    ),
]
