"""Which version of the messaging interface each gateway speaks: it is asked, and what it told is kept.

The table of gateways has what they told; what is here follows it. Until a gateway answers it counts as the
oldest that there is (version-11).
"""

from __future__ import annotations

import asyncio
import logging
from random import Random
from typing import TYPE_CHECKING, Final

from msgspec import UNSET
from sqlalchemy.exc import DBAPIError

from meshfleet.errors import DatabaseUnavailable, FleetError, MalformedVersion
from meshfleet.service.gateways import store
from meshfleet.service.gateways.timetable import Timetable
from meshfleet.wire import gating
from meshfleet.wire.codes import Operation, Priority
from meshfleet.wire.ids import Mac, Version, mac_number, number_mac
from meshfleet.wire.requests import ApiVersion
from meshfleet.wire.responses import ApiVersionResponse
from meshfleet.wire.times import to_millis
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
        patience: float = _PATIENCE,
    ) -> None:
        """`acks`: whether samples are acknowledged at all; without it `acking` stays empty."""
        self._database = database
        self._asking = asking
        self._carrier = carrier
        self._traffic = traffic
        self._clocks = clocks
        self._acks = acks
        self._now = now
        self._patience = patience
        self._timetable = Timetable(Random())  # noqa: S311 # when to ask is no secret
        self._known: dict[int, Version] = {}
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
        await self._refresh(self._now())

    async def run(self, *, pause: float = 1.0) -> None:
        """Ask gateways until cancelled; so many seconds pass between two looks at who is there."""
        async with asyncio.TaskGroup() as tasks:
            while True:
                await self.look(tasks)
                await asyncio.sleep(pause)

    async def look(self, tasks: asyncio.TaskGroup) -> None:
        """See who is there, and ask those whose turn it is."""
        await self._keep_up()
        now = self._now()
        self._timetable.see(self._present(), now)
        self._timetable.doubt(self._clocks.doubtful(), now)
        for gateway in self._timetable.take(now, _AT_ONCE - self._asked):
            self._asked += 1
            tasks.create_task(self._ask(gateway), name=f"apiversion {gateway:012x}")

    # Inside

    def _present(self) -> Mapping[int, int]:
        """Who is connected; on another broker, who was heard lately."""
        connected = self._carrier.gateways()
        if connected is None:
            return dict.fromkeys(self._traffic.heard(self._now()), 0)
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
            self._timetable.failed(gateway, self._now(), is_known=gateway in self._known)
        else:
            self._timetable.answered(gateway)
        finally:
            self._asked -= 1

    def _learn(self, gateway: int, answer: Answer) -> None:
        """Take over what a gateway told of its version and its clock."""
        response, sent, received = answer
        self._clocks.measure(gateway, sent, received, to_millis(response.time))
        version = response.version if isinstance(response, ApiVersionResponse) else UNSET
        if response.status or version is UNSET:
            raise MalformedVersion("version", f"is not told, the status is {response.status}")
        if not _FIRST <= version < _LAST:
            raise MalformedVersion("version", f"{version} is not believed")
        self._told[gateway] = version

    async def _keep_up(self) -> None:
        """Write what was told, and follow the table; when the database is away, the next time."""
        now = self._now()
        if not self._told and self._read_at is not None and 0 <= now - self._read_at < _REFRESH:
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
        told = dict(self._told)
        if not told:
            return
        await self._database.write(
            store.set_api_versions, {gateway: str(version) for gateway, version in told.items()}
        )
        for gateway, version in told.items():
            if self._told[gateway] == version:
                del self._told[gateway]

    async def _refresh(self, now: int) -> None:
        rows = await self._database.read(store.api_versions)
        self._read_at = now
        self._known = {gateway: Version.parse(text) for gateway, text in rows.items() if text is not None}
        new = {each for each, version in self._known.items() if self._acks and version >= _ACKED_SINCE}
        self.acking &= new
        self.acking |= new
