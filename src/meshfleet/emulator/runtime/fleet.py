"""Runs many emulated gateways in one process: one loop advances each gateway when it is due."""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import suppress
from heapq import heappop, heappush
from itertools import count
from math import inf
from typing import TYPE_CHECKING, Final

from meshfleet.emulator.runtime.uplink import Uplink

if TYPE_CHECKING:
    from httpx import AsyncClient

    from meshfleet.emulator.gateway import GatewayEmulator
    from meshfleet.emulator.runtime.simulation_pace import SimulationPace
    from meshfleet.mqtt.client import BrokerAddress, MqttOptions, Publish

_log = logging.getLogger(__name__)

_TICK_SECONDS: Final = 0.01
"""Seconds between two simulation steps; the messages of one step are published together."""

_MAX_PAUSE_SECONDS: Final = 1.0
"""Maximum seconds for which nothing is looked at while no gateway is due: the clock may be set meanwhile."""

_MAX_STEP_SECONDS: Final = 0.05
"""Maximum seconds for which one simulation step blocks the event loop."""

_MAX_CONNECTING: Final = 100
"""Maximum number of gateways that connect at the same time, so that the broker is not overloaded."""


class EmulatedFleet:
    """Runs emulated gateways that share one simulated time."""

    def __init__(self, pace: SimulationPace, *, http: AsyncClient, options: MqttOptions) -> None:
        self._pace = pace
        self._http = http
        self._options = options
        self._due: list[tuple[float, int, Uplink]] = []
        self._is_due_earlier = asyncio.Event()
        """Event that is set when a gateway is due before all others."""
        self._order = count()
        self._report_count = 0
        self.uplinks: list[Uplink] = []
        self.all_connected = asyncio.Event()
        """Event that is set when all gateways have connected once and the simulation starts."""

    def add(self, gateway: GatewayEmulator, address: BrokerAddress) -> Uplink:
        """Add a gateway, which connects to the MQTT broker at `address` when the fleet runs."""
        uplink = Uplink(gateway, address, options=self._options, http=self._http, now=self._pace.now)
        uplink.on_activity = self._on_activity
        self.uplinks.append(uplink)
        self._schedule(uplink)
        return uplink

    @property
    def report_count(self) -> int:
        """Number of reports that all gateways have created so far."""
        return self._report_count

    async def run(self) -> None:
        """Run all gateways until canceled. If the first connection of a gateway fails, raise its error."""
        connect_slots = asyncio.Semaphore(_MAX_CONNECTING)
        unconnected_count = len(self.uplinks)

        def on_connected() -> None:
            nonlocal unconnected_count
            unconnected_count -= 1
            if not unconnected_count:
                self._pace.start()
                self.all_connected.set()

        async with asyncio.TaskGroup() as tasks:
            for uplink in self.uplinks:
                mac = uplink.gateway.settings.mac
                tasks.create_task(
                    uplink.run(connect_slots, on_connected, self.all_connected), name=f"gateway {mac}"
                )
            tasks.create_task(self._run_simulation(), name="fleet simulation")

    async def _run_simulation(self) -> None:
        """Wait until all gateways have connected; then, in every tick, advance the gateways that are due."""
        await self.all_connected.wait()
        while True:
            self._simulate_until_now()
            await asyncio.sleep(_TICK_SECONDS)
            await self._wait_until_due()

    async def _wait_until_due(self) -> None:
        """Wait until a gateway is due: without this, small fleets would mostly look at nothing."""
        due = self._due[0][0] if self._due else inf
        seconds = min(self._pace.seconds_until(due), _MAX_PAUSE_SECONDS)
        if seconds <= _TICK_SECONDS:
            return
        self._is_due_earlier.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._is_due_earlier.wait()

    def _simulate_until_now(self) -> None:
        """Run the simulation up to now, but stop after `_MAX_STEP_SECONDS`, so that other tasks can run."""
        budget = self._pace.limit_next_step(self._due[0][0] if self._due else inf, self._report_count)
        max_reports = self._report_count + budget.reports
        deadline = time.monotonic() + _MAX_STEP_SECONDS
        while self._due and self._due[0][0] <= budget.until and self._report_count < max_reports:
            moment, _, uplink = heappop(self._due)
            if moment == uplink.next_due:
                self._pace.advance_to(moment)
                self._advance(uplink, moment)
            if time.monotonic() > deadline:
                self._pace.fall_behind(moment)
                return

    def _on_activity(self, uplink: Uplink) -> None:
        """Advance the simulation of a gateway at once, as it got messages or the result of an I/O action."""
        self._advance(uplink, self._pace.now())

    def _advance(self, uplink: Uplink, moment: float) -> None:
        """Simulate a gateway up to the simulated time `moment`; publish its messages, perform its actions."""
        gateway = uplink.gateway
        if messages := self._advance_gateway(moment, gateway):
            uplink.publish(messages)
        self._report_count += gateway.report_count - uplink.counted_reports
        uplink.counted_reports = gateway.report_count
        if gateway.has_actions:
            for action in gateway.drain_actions():
                uplink.perform(action)
        self._schedule(uplink)

    @staticmethod
    def _advance_gateway(moment: float, gateway: GatewayEmulator) -> list[Publish]:
        """Simulate a gateway, and return its messages. Log an exception and return no messages."""
        try:
            return gateway.advance(moment)
        except Exception:  # noqa: BLE001 # a failure of one gateway must not stop the others
            _log.exception(
                "simulation of gateway %s failed, which is a bug in the emulator", gateway.settings.mac
            )
            return []

    def _schedule(self, uplink: Uplink) -> None:
        """Schedule a gateway for its next simulated event."""
        uplink.next_due = uplink.gateway.next_due
        heappush(self._due, (uplink.next_due, next(self._order), uplink))
        if self._due[0][2] is uplink:
            self._is_due_earlier.set()
