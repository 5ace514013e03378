"""What tests of `Mesh` share: gateways, and how to hear a few reports."""

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
"""Seconds for an answer that comes; reached only when something is broken."""


def gateway_on(
    broker: str,
    mode: str = "raw",
    *,
    password: str = "any",  # noqa: S107 # most brokers here let everybody in
    **settings: object,
) -> BackgroundContext[EmulatedGateway]:
    """An emulated gateway on that broker, in a world that is quick. The embedded one knows it by its name."""
    url = broker.replace("://", f"://{GATEWAY}:{password}@")
    return emulated_gateway(broker=url, mac=GATEWAY, mode=mode, **{"speed": 100.0, **settings})  # type: ignore[arg-type] # by their names


async def collect_reports(
    reports: AsyncGenerator[Report, None], until: int | Callable[[list[Report]], bool]
) -> list[Report]:
    """So many reports, or all until something holds for them; then the iterator is closed."""
    heard: list[Report] = []
    async with asyncio.timeout(TIMEOUT), aclosing(reports):
        async for report in reports:
            heard.append(report)
            if len(heard) == until if isinstance(until, int) else until(heard):
                break
    return heard
