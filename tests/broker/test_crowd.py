"""Connections from one network, of which many come without a login."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from meshfleet.broker.crowd import Crowd, FailureRate
from meshfleet.settings import Limits
from tests.tables import each_row

if TYPE_CHECKING:
    from collections.abc import Sequence

pytestmark = pytest.mark.both_loops

ONE_MACHINE = [f"2001:db8::{number:x}" for number in range(1, 301)]
MANY_MACHINES = [f"2001:db8:0:{number:x}::1" for number in range(1, 301)]


def make_crowd(failed_connections: int) -> Crowd:
    """Make a crowd that has room for one connection, for which no time passes."""
    crowd = Crowd(Limits(connections=1, failed_connections=failed_connections))
    crowd.failures = FailureRate(failed_connections, clock=lambda: 0.0)
    return crowd


@pytest.mark.anyio
@pytest.mark.rule("broker-29")
@each_row("address", ["2001:db8::2", "2001:db8::1"])
@each_row("second_passes", [False, True])
async def test_a_connection_waits_for_others_of_its_network_and_ends_if_they_fail(
    address: str, *, second_passes: bool
) -> None:
    crowd = make_crowd(failed_connections=1)
    assert await crowd.wait_turn("2001:db8::1")
    assert await crowd.wait_turn("2001:db8:0:1::1"), "another network"
    waiting = [asyncio.create_task(crowd.wait_turn(address)) for _ in range(3)]
    await asyncio.sleep(0)
    assert not any(task.done() for task in waiting)
    if second_passes:
        crowd.start_second()  # the first one said nothing, and no longer keeps others waiting
        await waiting[0]
        assert [task.done() for task in waiting] == [True, False, False]
    crowd.count_failure("2001:db8::1")
    assert await asyncio.gather(*waiting) == [second_passes, False, False]


@pytest.mark.rule("broker-29")
@pytest.mark.parametrize(
    ("addresses", "lines"), [(ONE_MACHINE, 1), (MANY_MACHINES, 100)], ids=["one machine", "many machines"]
)
def test_connections_that_are_closed_unread_do_not_fill_the_log(
    caplog: pytest.LogCaptureFixture, addresses: Sequence[str], lines: int
) -> None:
    crowd = make_crowd(failed_connections=50)
    assert crowd.expect("192.0.2.1")
    assert not any(map(crowd.expect, addresses))
    assert (len(caplog.records), crowd.turned_away) == (lines, len(addresses))
