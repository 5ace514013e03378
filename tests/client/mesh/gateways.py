"""Emulated gateways and report collection for the tests of `Mesh`."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING

from meshfleet.protocol.ids import Mac
from meshfleet.testing import emulated_gateway
from tests.mqtt.broker.running_broker import D, G
from tests.mqtt.client.proxy import TIMEOUT

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from meshfleet.client.mesh.reports import Report
    from meshfleet.testing import EmulatedGateway
    from meshfleet.testing.background import BackgroundContext

GATEWAY, DEVICE = Mac(G), Mac(D)

LONG = 30.0
"""Seconds to wait for a response that is expected; only reached when something is broken."""


def gateway_on(
    broker: str,
    mode: str = "raw",
    *,
    password: str = "any",  # noqa: S107 # most brokers here accept every client
    **settings: object,
) -> BackgroundContext[EmulatedGateway]:
    """Run an emulated gateway at 100 times real speed on this broker. Its user name is its MAC."""
    url = broker.replace("://", f"://{GATEWAY}:{password}@")
    return emulated_gateway(broker=url, mac=GATEWAY, mode=mode, **{"speed": 100.0, **settings})  # type: ignore[arg-type] # keywords of emulated_gateway


async def collect_reports(
    reports: AsyncGenerator[Report, None], until: int | Callable[[list[Report]], bool]
) -> list[Report]:
    """Collect a number of reports, or all until a condition is met, and close the iterator."""
    received: list[Report] = []
    async with asyncio.timeout(TIMEOUT), aclosing(reports):
        async for report in reports:
            received.append(report)
            if len(received) == until if isinstance(until, int) else until(received):
                break
    return received
