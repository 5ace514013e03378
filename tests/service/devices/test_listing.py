from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from meshfleet.service.devices import listing
from tests.examples import examples
from tests.service.devices import fleets

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy import Connection

    from meshfleet.db import Database
    from meshfleet.service.devices.model import Filter, Order, Position
    from tests.service.devices.fleets import Member


def _walk(connection: Connection, chosen: Filter, order: Order, limit: int) -> list[str]:
    """The ids on all pages, which have `limit` devices but for the last."""
    ids: list[str] = []
    after: Position | None = None
    while True:
        items, after = listing.page(connection, chosen, order, after=after, limit=limit)
        ids += [item.id for item in items]
        if after is None:
            assert len(items) <= limit
            return ids
        assert len(items) == limit


@settings(max_examples=examples(60), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    fleet=fleets.fleets,
    questions=st.lists(st.tuples(fleets.filters, fleets.orders, st.integers(1, 7)), min_size=1, max_size=8),
)
def test_the_pages_together_are_the_devices_that_meet_the_filter_in_order(
    database: Database, fleet: Sequence[Member], questions: list[tuple[Filter, Order, int]]
) -> None:
    database.write_now(fleets.clear)
    database.write_now(fleets.store, fleet)
    for chosen, order, limit in questions:
        expected = [f"bmac-{mac}" for mac in fleets.listed(fleet, chosen, order)]
        assert database.read_now(_walk, chosen, order, limit) == expected
