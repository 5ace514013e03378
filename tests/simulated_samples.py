"""Samples of a fleet over days, written to a sample store in simulated time."""

from __future__ import annotations

from itertools import pairwise
from random import Random
from typing import TYPE_CHECKING, Final

from meshfleet.db.samples import DAY_MS, SampleKind, open_sample_store

if TYPE_CHECKING:
    from pathlib import Path

    from sqlalchemy import Connection

    from meshfleet.db import Database
    from meshfleet.db.samples import SampleRow

FIRST_DAY: Final = 20_000 * DAY_MS
MINUTE_MS: Final = 60_000
REPORTS_PER_DAY: Final = DAY_MS // MINUTE_MS
"""Reports of a device in a day, if it sends one each minute."""

_MINUTES_PER_COMMIT: Final = 10
_COMMITS_PER_MAINTENANCE: Final = 6
_GATEWAY: Final = 0x02005E000001
_FIRST_DEVICE: Final = 0xCA5BDA000000

_IDENTIFIERS: Final = (
    *((SampleKind.MEASUREMENT, 0x8800, 0.2, 2), (SampleKind.MEASUREMENT, 0x8802, 0.5, 1)),
    *((SampleKind.MEASUREMENT, 0x8801, 0.05, 2), (SampleKind.MEASUREMENT, 0x8803, 80.0, 0)),
    (SampleKind.PROPERTY, 0x8100, 1.0, 0),
)
"""Kind, identifier, largest step and decimals of the values that each device reports in turn."""


class SimulatedSamples:
    """Sample store that gets one report each minute from each device."""

    def __init__(self, database: Database, folder: Path, devices: int) -> None:
        self.now = FIRST_DAY
        self.days = 0
        """Number of days written."""
        self._database = database
        self._store = open_sample_store(database, folder, {}, now=self.now)
        self._random = Random(1)  # noqa: S311 # the same values every time
        self._values = {_FIRST_DEVICE + number: [20.0] * len(_IDENTIFIERS) for number in range(devices)}
        self._offsets = {device: self._random.randrange(MINUTE_MS) for device in self._values}

    async def write_day(self) -> None:
        """Write the reports of the next day, and maintain the store every hour as a service does."""
        minutes = range(0, REPORTS_PER_DAY + 1, _MINUTES_PER_COMMIT)
        for number, (first, end) in enumerate(pairwise(minutes)):
            rows = {device: self._build_rows(device, range(first, end)) for device in self._values}
            self.now = FIRST_DAY + self.days * DAY_MS + end * MINUTE_MS
            batch = self._database.write_now(self._write, rows)
            self._store.publish_committed(batch, rows)
            await self._store.ensure_capacity(self.now)
            if number % _COMMITS_PER_MAINTENANCE == 0:
                await self._store.maintain(self.now)
        self.days += 1
        await self._store.maintain(self.now)

    def _write(self, connection: Connection, rows: dict[int, list[SampleRow]]) -> int:
        return self._store.write(connection, rows, self.now)

    def _build_rows(self, device: int, minutes: range) -> list[SampleRow]:
        rows: list[SampleRow] = []
        values, start = self._values[device], FIRST_DAY + self.days * DAY_MS + self._offsets[device]
        for minute in minutes:
            turn = minute % len(_IDENTIFIERS)
            kind, identifier, step, decimals = _IDENTIFIERS[turn]
            values[turn] = max(0.0, round(values[turn] + self._random.uniform(-step, step), decimals))
            time = start + minute * MINUTE_MS + self._random.randrange(2000)
            rows.append((time, int(kind), identifier, minute & 0xFF, _GATEWAY, values[turn], None, None))
        return rows

    def close(self) -> None:
        """Close the store."""
        self._store.close()
