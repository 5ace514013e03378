from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings

from meshfleet.errors import TooManyAttempts
from meshfleet.service.devices import summary
from meshfleet.service.devices.counting import Counting
from meshfleet.service.devices.model import Filter, Sighting, three_parts
from meshfleet.wire.ids import Mac, ModelNumber, Version
from meshfleet.wire.rest import Summary
from tests.examples import examples
from tests.service.devices import fleets

if TYPE_CHECKING:
    from collections.abc import Sequence

    from meshfleet.db import Database
    from meshfleet.wire.rest.devices import Share
    from tests.service.devices.fleets import Member


@settings(max_examples=examples(60), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(fleet=fleets.fleets, chosen=fleets.filters)
def test_a_summary_counts_the_devices_that_the_list_has(
    database: Database, fleet: Sequence[Member], chosen: Filter
) -> None:
    database.write_now(fleets.clear)
    database.write_now(fleets.store, fleet)
    found = database.read_now(summary.count, chosen)
    members = [member for member in fleet if fleets.is_chosen(member, chosen)]
    assert found.total == len(members)
    assert found.connected == sum(member.sighting.connected is True for member in members)
    assert found.disconnected == found.total - found.connected
    assert _counted(found.models) == Counter(str(member.sighting.model) for member in members)
    assert _counted(found.labels) == Counter(label for member in members for label in member.labels)
    firmware = Counter(three_parts(fleets.firmware_of(member)) for member in members)
    assert _counted(found.firmware) == firmware
    assert found.exact


def test_the_largest_share_comes_first_and_of_equals_the_smaller_value(database: Database) -> None:
    versions = ("2.0.0", "1.0.0", "1.0.0-beta.1", "3.0.0")
    sightings = [
        Sighting(device=Mac(f"{number:012x}"), at=1, model=ModelNumber("0018"), firmware=Version.parse(text))
        for number, text in enumerate(versions)
    ]
    database.write_now(fleets.store, [fleets.Member(sighting=seen, labels=frozenset()) for seen in sightings])
    found = database.read_now(summary.count, Filter())
    assert [(share.value, share.count) for share in found.firmware] == [
        ("1.0.0", 2),
        ("2.0.0", 1),
        ("3.0.0", 1),
    ]


@pytest.mark.anyio
async def test_only_so_many_different_counts_wait_at_a_time(sqlite_database: Database) -> None:
    counting = Counting(sqlite_database)
    waiting = [counting.count(Filter(labels=(f"{number}",))) for number in range(25)]
    told = await asyncio.gather(*waiting, return_exceptions=True)
    assert [each.total for each in told if isinstance(each, Summary)] == [0] * 20
    refused = [each for each in told if isinstance(each, TooManyAttempts)]
    assert [each.retry_after for each in refused] == [1] * 5
    assert (await counting.count(Filter())).total == 0


def _counted(shares: list[Share]) -> dict[str, int]:
    return {share.value: share.count for share in shares}
