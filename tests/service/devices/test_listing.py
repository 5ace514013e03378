from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import given, settings
from hypothesis import strategies as st

from meshfleet.service.devices import listing
from tests.examples import examples
from tests.service.devices import fleets

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy import Connection

    from meshfleet.db import Database
    from meshfleet.service.devices.model import DeviceFilter, DevicePosition, SortOrder
    from tests.service.devices.fleets import FleetMember


def _list_all(connection: Connection, device_filter: DeviceFilter, order: SortOrder, limit: int) -> list[str]:
    """Return the ids of all pages, and check that all but the last have `limit` devices."""
    ids: list[str] = []
    after: DevicePosition | None = None
    while True:
        items, after = listing.list_devices(connection, device_filter, order, after=after, limit=limit)
        ids += [item.id for item in items]
        if after is None:
            assert len(items) <= limit
            return ids
        assert len(items) == limit


@settings(max_examples=examples(60))
@given(
    fleet=fleets.fleets,
    queries=st.lists(
        st.tuples(fleets.filters, fleets.sort_orders, st.integers(1, 7)), min_size=1, max_size=8
    ),
)
def test_the_pages_together_are_the_matching_devices_in_order(
    database: Database, fleet: Sequence[FleetMember], queries: list[tuple[DeviceFilter, SortOrder, int]]
) -> None:
    database.write_now(fleets.clear_fleet)
    database.write_now(fleets.store_fleet, fleet)
    for device_filter, order, limit in queries:
        expected = [f"bmac-{mac}" for mac in fleets.expected_list(fleet, device_filter, order)]
        assert database.read_now(_list_all, device_filter, order, limit) == expected
