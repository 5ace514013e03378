"""Emulated gateways in one process: one time for all, and somebody who looks after each when it is due."""

from __future__ import annotations

import asyncio
import logging
import time
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
"""Seconds between two looks at the clock: what is due in between is published together."""

_MAX_STEP_SECONDS: Final = 0.05
"""Seconds that the loop is kept from everything else."""

_MAX_CONNECTING: Final = 100
"""Gateways that connect at the same time: a broker takes only so many."""


class EmulatedFleet:
    """Gateways that live at the same moment."""

    def __init__(self, pace: SimulationPace, *, http: AsyncClient, options: MqttOptions) -> None:
        self._pace = pace
        self._http = http
        self._options = options
        self._due: list[tuple[float, int, Uplink]] = []
        self._order = count()
        self._report_count = 0
        self.uplinks: list[Uplink] = []
        self.all_connected = asyncio.Event()
        """Set when all gateways have connected once; the world begins then."""

    def add(self, gateway: GatewayEmulator, address: BrokerAddress) -> Uplink:
        """Let a gateway take part; it connects when the fleet runs."""
        uplink = Uplink(gateway, address, options=self._options, http=self._http, now=self._pace.now)
        uplink.on_activity = self._on_activity
        self.uplinks.append(uplink)
        self._schedule(uplink)
        return uplink

    @property
    def report_count(self) -> int:
        """Reports made so far."""
        return self._report_count

    async def run(self) -> None:
        """Run for ever. A gateway that cannot connect at first ends it all, and the error says why."""
        turn = asyncio.Semaphore(_MAX_CONNECTING)
        missing = len(self.uplinks)

        def connected() -> None:
            nonlocal missing
            missing -= 1
            if not missing:
                self._pace.start()
                self.all_connected.set()

        async with asyncio.TaskGroup() as tasks:
            for uplink in self.uplinks:
                mac = uplink.gateway.settings.mac
                tasks.create_task(uplink.run(turn, connected, self.all_connected), name=f"gateway {mac}")
            tasks.create_task(self._run_simulation(), name="time of the fleet")

    async def _run_simulation(self) -> None:
        """Look after whoever is due."""
        await self.all_connected.wait()
        while True:
            self._catch_up()
            await asyncio.sleep(_TICK_SECONDS)

    def _catch_up(self) -> None:
        """Live up to now, or as far as that goes in a short while: others want to live too."""
        turn = self._pace.next_step(self._due[0][0] if self._due else inf, self._report_count)
        most = self._report_count + turn.reports
        end = time.monotonic() + _MAX_STEP_SECONDS
        while self._due and self._due[0][0] <= turn.until and self._report_count < most:
            moment, _, uplink = heappop(self._due)
            if moment == uplink.next_due:
                self._pace.advance_to(moment)
                self._advance(uplink, moment)
            if time.monotonic() > end:
                self._pace.fall_behind(moment)
                return

    def _on_activity(self, uplink: Uplink) -> None:
        """Something came for a gateway: what it has to say at once is said at once."""
        self._advance(uplink, self._pace.now())

    def _advance(self, uplink: Uplink, moment: float) -> None:
        gateway = uplink.gateway
        if messages := self._advance_gateway(moment, gateway):
            uplink.publish(messages)
        self._report_count += gateway.report_count - uplink.counted_reports
        uplink.counted_reports = gateway.report_count
        if gateway.has_actions:
            for chore in gateway.drain_actions():
                uplink.perform(chore)
        self._schedule(uplink)

    @staticmethod
    def _advance_gateway(moment: float, gateway: GatewayEmulator) -> list[Publish]:
        try:
            return gateway.advance(moment)
        except Exception:  # noqa: BLE001 # one gateway of thousands
            _log.exception("%s has stumbled, which is a defect of ours", gateway.settings.mac)
            return []

    def _schedule(self, uplink: Uplink) -> None:
        uplink.next_due = uplink.gateway.next_due
        heappush(self._due, (uplink.next_due, next(self._order), uplink))
