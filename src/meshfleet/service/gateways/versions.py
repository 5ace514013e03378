"""Which version of the messaging interface each gateway speaks, and what time it has: it is asked.

The table of gateways has what they told; what is here follows it. Until a gateway answers it counts as the
oldest that there is (version-11). The answers measure its clock, as all answers do; what is known of that is
written to the table here.
"""

from __future__ import annotations

import asyncio
import logging
from random import Random
from typing import TYPE_CHECKING, Final

from msgspec import UNSET
from sqlalchemy.exc import DBAPIError

from meshfleet.errors import DatabaseUnavailable, FleetError, GatewayTimeout, MalformedVersion
from meshfleet.service.gateways import store
from meshfleet.service.gateways.timetable import Timetable
from meshfleet.wire import gating
from meshfleet.wire.codes import Operation, Priority
from meshfleet.wire.ids import Mac, Version, mac_number, number_mac
from meshfleet.wire.requests import ApiVersion
from meshfleet.wire.responses import ApiVersionResponse
from meshfleet.wire.topics import RequestTopic

if TYPE_CHECKING:
    from collections.abc import Mapping

    from meshfleet.db import Database
    from meshfleet.service.clock import Now
    from meshfleet.service.gateways.traffic import Traffic
    from meshfleet.service.mqtt.carrier import Carrier
    from meshfleet.service.presence.clocks import Clocks
    from meshfleet.service.requests.asking import Answer, Asking

_log = logging.getLogger(__name__)

_AT_ONCE: Final = 20
"""Gateways that are asked at the same time."""

_PATIENCE: Final = 10.0
"""Seconds for a gateway to answer about itself."""

_SET: Final = 2_000
"""Milliseconds by which the clock of this machine has to change within a look if somebody set it."""

_SAME: Final = 500
"""Milliseconds by which the offset of a clock may change before it is written again."""

_REFRESH: Final = 5_000
"""Milliseconds between two looks at the table: gateways are claimed and released."""

_FIRST, _LAST = Version(1, 0, 0), Version(100, 0, 0)
"""Versions that a gateway can have; others nobody believes."""

_ACKED_SINCE: Final = gating.since("request", Operation.ACK, None) or gating.NEWEST


class Versions:
    """Asks gateways for their versions, and knows them."""

    def __init__(  # noqa: PLR0913 # by name
        self,
        database: Database,
        asking: Asking,
        carrier: Carrier,
        *,
        traffic: Traffic,
        clocks: Clocks,
        acks: bool,
        now: Now,
        steady: Now,
        patience: float = _PATIENCE,
    ) -> None:
        """`acks`: whether samples are acknowledged at all; without it `acking` stays empty.

        `steady` is the clock by which gateways are asked again: one that is never set.
        """
        self._database = database
        self._asking = asking
        self._carrier = carrier
        self._traffic = traffic
        self._clocks = clocks
        self._acks = acks
        self._now = now
        self._steady = steady
        self._ahead = now() - steady()
        """Milliseconds that the clock of this machine is ahead of the steady one."""
        self._patience = patience
        self._timetable = Timetable(Random())  # noqa: S311 # when to ask is no secret
        self._known: dict[int, Version] = {}
        self._kept_offsets: dict[int, int | None] = {}
        """Offsets of clocks as the table has them, of all gateways that are claimed."""
        self._told: dict[int, Version] = {}
        """What gateways told and the table does not have yet."""
        self._read_at: int | None = None
        self._asked = 0
        """How many are being asked."""
        self._is_failing = False
        self.acking: set[int] = set()
        """Those that take acknowledgements of samples; always the same set, and always current."""

    def version(self, gateway: int) -> Version:
        """What a gateway speaks, as far as we know."""
        return self._known.get(gateway, gating.ASSUMED)

    async def restore(self) -> None:
        """Go on with what was known before a start."""
        await self._refresh(self._steady())
        kept = self._kept_offsets
        self._clocks.restore({gateway: ahead for gateway, ahead in kept.items() if ahead is not None})

    async def run(self, *, pause: float = 1.0) -> None:
        """Ask gateways until cancelled; so many seconds pass between two looks at who is there."""
        async with asyncio.TaskGroup() as tasks:
            while True:
                await self.look(tasks)
                await asyncio.sleep(pause)

    async def look(self, tasks: asyncio.TaskGroup) -> None:
        """See who is there, and ask those whose turn it is."""
        self._follow_our_clock()
        await self._keep_up()
        now = self._steady()
        self._timetable.see(self._present(), now)
        self._timetable.doubt(self._clocks.doubtful(), now)
        for gateway in self._timetable.take(now, _AT_ONCE - self._asked):
            self._asked += 1
            tasks.create_task(self._ask(gateway), name=f"apiversion {gateway:012x}")

    # Inside

    def _follow_our_clock(self) -> None:
        """Notice that the clock of this machine was set: those of gateways were not."""
        ahead, before = self._now() - self._steady(), self._ahead
        self._ahead = ahead
        if abs(ahead - before) > _SET:
            seconds = abs(ahead - before) / 1000
            _log.warning(
                "the clock of this machine was set %s by %.0f s",
                "ahead" if ahead > before else "back",
                seconds,
            )
            self._clocks.follow_our_clock(ahead - before)

    def _present(self) -> Mapping[int, int]:
        """Who is connected; on another broker, who was heard lately."""
        connected = self._carrier.gateways()
        if connected is None:
            return dict.fromkeys(self._traffic.heard(), 0)
        return {mac_number(Mac(mac)): number for mac, number in connected.items()}

    async def _ask(self, gateway: int) -> None:
        mac = number_mac(gateway)
        try:
            topic = RequestTopic(mac, mac, Operation.APIVERSION)
            answer = await self._asking.ask(
                topic, ApiVersion(priority=Priority.HIGHEST), timeout=self._patience
            )
            self._learn(gateway, answer)
        except FleetError as exc:
            _log.debug("the version of a gateway stays unknown: %s", exc)
            if isinstance(exc, GatewayTimeout):
                self._clocks.miss_answer(gateway)
            self._timetable.failed(gateway, self._steady())
        else:
            self._timetable.answered(gateway, self._steady())
        finally:
            self._asked -= 1

    def _learn(self, gateway: int, answer: Answer) -> None:
        """Take over the version that a gateway told. Its time was taken when the answer came."""
        response = answer.response
        version = response.version if isinstance(response, ApiVersionResponse) else UNSET
        if response.status or version is UNSET:
            raise MalformedVersion("version", f"is not told, the status is {response.status}")
        if not _FIRST <= version < _LAST:
            raise MalformedVersion("version", f"{version} is not believed")
        self._told[gateway] = version

    async def _keep_up(self) -> None:
        """Write what was told, and follow the table; when the database is away, the next time."""
        now = self._steady()
        is_current = self._read_at is not None and now - self._read_at < _REFRESH
        if is_current and not self._told and not self._new_offsets():
            return
        try:
            await self._write()
            await self._refresh(now)
        except (DatabaseUnavailable, DBAPIError) as exc:
            if not self._is_failing:
                _log.warning("versions of gateways cannot be kept: %s", type(exc).__name__)
            self._is_failing = True
        else:
            self._is_failing = False

    async def _write(self) -> None:
        if offsets := self._new_offsets():
            await self._database.write(store.set_clock_offsets, offsets)
        told = dict(self._told)
        if not told:
            return
        await self._database.write(
            store.set_api_versions, {gateway: str(version) for gateway, version in told.items()}
        )
        for gateway, version in told.items():
            if self._told[gateway] == version:
                del self._told[gateway]

    def _new_offsets(self) -> dict[int, int]:
        """Offsets of clocks that the table does not have yet, or has others for."""
        kept = self._kept_offsets
        return {
            gateway: ahead
            for gateway, ahead in self._clocks.offsets.items()
            if gateway in kept and _is_news(ahead, kept[gateway])
        }

    async def _refresh(self, now: int) -> None:
        rows = await self._database.read(store.load_gateway_facts)
        self._read_at = now
        self._kept_offsets = {gateway: each.clock_offset for gateway, each in rows.items()}
        self._clocks.forget(self._clocks.offsets.keys() - rows.keys())
        known = {gateway: each.api_version for gateway, each in rows.items()}
        self._known = {gateway: Version.parse(text) for gateway, text in known.items() if text is not None}
        new = {each for each, version in self._known.items() if self._acks and version >= _ACKED_SINCE}
        self.acking &= new
        self.acking |= new


def _is_news(ahead: int, kept: int | None) -> bool:
    return kept is None or abs(ahead - kept) >= _SAME
