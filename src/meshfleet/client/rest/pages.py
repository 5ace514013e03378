"""Lists, page by page."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol, TypeVar, cast

from meshfleet.wire import rest

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from meshfleet.client.rest.calls import Query
    from meshfleet.client.rest.desk import Desk

ItemT = TypeVar("ItemT")
ItemT_co = TypeVar("ItemT_co", covariant=True)


_EMPTY: Final = 100
"""Pages in a row with nothing on them; a service that filters may have some."""


class Page(Protocol[ItemT_co]):
    """A part of a list, and the token for the next one (rest-16)."""

    @property
    def items(self) -> Sequence[ItemT_co]:
        """What is on this page."""

    @property
    def next_token(self) -> str | None:
        """None on the last page."""


async def walk(
    desk: Desk, kind: type[Page[ItemT]], path: str, query: Query = ()
) -> AsyncGenerator[ItemT, None]:
    """All items of a list, of any length: a page is fetched when its first item is wanted."""
    size = ("MaxResults", str(rest.MAX_RESULTS))
    token: str | None = None
    empty = 0
    while True:
        place = () if token is None else (("NextToken", token),)
        # All our pages are bodies, too, which no type can say of them together.
        page = cast(
            "Page[ItemT]", await desk.get(cast("type[rest.Body]", kind), path, (*query, size, *place))
        )
        for item in page.items:
            yield item
        if page.next_token is None:
            return
        empty = 0 if page.items else empty + 1
        if page.next_token == token or empty > _EMPTY:
            raise desk.refusal("its list has no end")
        token = page.next_token
