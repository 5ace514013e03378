from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings

from meshfleet.errors import TooManyAttempts
from meshfleet.protocol.ids import Mac, ModelNumber, Version
from meshfleet.rest.devices import Share, Summary
from meshfleet.service.devices import summary
from meshfleet.service.devices.model import DeviceFilter, DeviceObservation, format_base_version
from meshfleet.service.devices.summary import SummaryCache
from tests.examples import examples
from tests.service.devices import fleets

if TYPE_CHECKING:
    from collections.abc import Sequence

    from meshfleet.db import Database
    from tests.service.devices.fleets import FleetMember


@settings(max_examples=examples(60))
@given(fleet=fleets.fleets, device_filter=fleets.filters)
def test_a_summary_counts_the_devices_of_the_list(
    database: Database, fleet: Sequence[FleetMember], device_filter: DeviceFilter
) -> None:
    database.write_now(fleets.clear_fleet)
    database.write_now(fleets.store_fleet, fleet)
    found = database.read_now(summary.count_devices, device_filter)
    members = [member for member in fleet if fleets.matches_filter(member, device_filter)]
    assert found.total == len(members)
    assert found.connected == sum(member.observation.connected is True for member in members)
    assert found.disconnected == found.total - found.connected
    assert _to_dict(found.models) == Counter(str(member.observation.model) for member in members)
    assert _to_dict(found.labels) == Counter(label for member in members for label in member.labels)
    firmware = Counter(format_base_version(fleets.firmware_of(member)) for member in members)
    assert _to_dict(found.firmware) == firmware
    assert found.exact


def test_shares_are_ordered_by_count_and_then_by_value(database: Database) -> None:
    versions = ("2.0.0", "1.0.0", "1.0.0-beta.1", "3.0.0")
    sightings = [
        DeviceObservation(
            device=Mac(f"{number:012x}"), at=1, model=ModelNumber("0018"), firmware=Version.parse(text)
        )
        for number, text in enumerate(versions)
    ]
    database.write_now(
        fleets.store_fleet, [fleets.FleetMember(observation=seen, labels=frozenset()) for seen in sightings]
    )
    found = database.read_now(summary.count_devices, DeviceFilter())
    assert [(share.value, share.count) for share in found.firmware] == [
        ("1.0.0", 2),
        ("2.0.0", 1),
        ("3.0.0", 1),
    ]


@pytest.mark.anyio
async def test_concurrent_counts_of_different_filters_are_limited(sqlite_database: Database) -> None:
    cache = SummaryCache(sqlite_database)
    requests = [cache.get_summary(DeviceFilter(labels=(f"{number}",))) for number in range(25)]
    results = await asyncio.gather(*requests, return_exceptions=True)
    assert [each.total for each in results if isinstance(each, Summary)] == [0] * 20
    rejected = [each for each in results if isinstance(each, TooManyAttempts)]
    assert [each.retry_after for each in rejected] == [1] * 5
    assert (await cache.get_summary(DeviceFilter())).total == 0


def _to_dict(shares: list[Share]) -> dict[str, int]:
    return {share.value: share.count for share in shares}
