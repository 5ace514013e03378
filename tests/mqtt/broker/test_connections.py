"""Limits on connections of one network, many of which do not log in."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from meshfleet.mqtt.broker.connections import ConnectionRegistry, FailedLoginLimiter
from meshfleet.mqtt.broker_limits import BrokerLimits
from tests.row_tables import each_row

if TYPE_CHECKING:
    from collections.abc import Sequence

pytestmark = pytest.mark.both_loops

ONE_MACHINE = [f"2001:db8::{number:x}" for number in range(1, 301)]
MANY_MACHINES = [f"2001:db8:0:{number:x}::1" for number in range(1, 301)]


def create_registry(failed_connections: int) -> ConnectionRegistry:
    """Create a registry with space for one connection, for which no time passes."""
    registry = ConnectionRegistry(BrokerLimits(connections=1, failed_connections=failed_connections))
    registry.failed_logins = FailedLoginLimiter(failed_connections, clock=lambda: 0.0)
    return registry


@pytest.mark.anyio
@pytest.mark.rule("broker-29")
@each_row("address", ["2001:db8::2", "2001:db8::1"])
@each_row("second_passes", [False, True])
async def test_a_connection_waits_for_others_of_its_network_and_is_rejected_if_they_fail(
    address: str, *, second_passes: bool
) -> None:
    registry = create_registry(failed_connections=1)
    assert await registry.wait_for_login_turn("2001:db8::1")
    assert await registry.wait_for_login_turn("2001:db8:0:1::1"), "another network"
    waiting = [asyncio.create_task(registry.wait_for_login_turn(address)) for _ in range(3)]
    await asyncio.sleep(0)
    assert not any(task.done() for task in waiting)
    if second_passes:
        registry.reset_pending_logins()  # the first login is no longer counted as pending
        await waiting[0]
        assert [task.done() for task in waiting] == [True, False, False]
    registry.count_failed_login("2001:db8::1")
    assert await asyncio.gather(*waiting) == [second_passes, False, False]


@pytest.mark.rule("broker-29")
@pytest.mark.parametrize(
    ("addresses", "lines"), [(ONE_MACHINE, 1), (MANY_MACHINES, 100)], ids=["one machine", "many machines"]
)
def test_connections_that_are_closed_unread_do_not_fill_the_log(
    caplog: pytest.LogCaptureFixture, addresses: Sequence[str], lines: int
) -> None:
    registry = create_registry(failed_connections=50)
    assert registry.reserve_slot("192.0.2.1")
    assert not any(map(registry.reserve_slot, addresses))
    assert (len(caplog.records), registry.rejected_count) == (lines, len(addresses))
