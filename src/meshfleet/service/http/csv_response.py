"""Responses with CSV instead of JSON, for clients that prefer it (rest-185)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from litestar.openapi.spec import OpenAPIMediaType, OpenAPIResponse, OpenAPIType, Operation, Schema
from litestar.response import Stream

from meshfleet.csv_format import CONTENT_TYPE, MEDIA_TYPE, wants_csv
from meshfleet.errors import Fault, InvalidRequest

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from meshfleet.service.http.request import ApiRequest


@dataclass
class JsonOrCsv(Operation):
    """OpenAPI operation whose response is available as JSON and as CSV."""

    def __post_init__(self) -> None:
        response = (self.responses or {})["200"]
        assert isinstance(response, OpenAPIResponse)  # noqa: S101 # Litestar has just created it
        content = response.content or {}
        content[MEDIA_TYPE] = OpenAPIMediaType(schema=Schema(type=OpenAPIType.STRING))


def prefers_csv(request: ApiRequest) -> bool:
    """Return whether the client of a request prefers CSV to JSON."""
    return wants_csv(request.headers.getall("accept", []))


async def stream_csv(
    request: ApiRequest, header: bytes, chunks: AsyncIterator[bytes], *, file_name: str
) -> Stream:
    """Return a response that streams CSV: a line with the names of the columns, then the chunks.

    The first chunk is read before the response starts, so that a failed read still gets an error response.
    Raise `InvalidRequest` if the request has paging parameters (rest-188).
    """
    _reject_paging(request)
    await request.body()  # empty, but a disconnect before its end would count as an error
    first_chunk = await anext(chunks, b"")
    return Stream(
        _prepend(header + first_chunk, chunks),
        media_type=CONTENT_TYPE,
        headers={"content-disposition": f'attachment; filename="{file_name}"'},
    )


async def _prepend(start: bytes, chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield start
    async for chunk in chunks:
        yield chunk


def _reject_paging(request: ApiRequest) -> None:
    names = [name for name in ("MaxResults", "NextToken") if name in request.query_params]
    if names:
        raise InvalidRequest(
            [Fault(name, "cannot be combined with CSV, which has no pages") for name in names]
        )
