"""Sends all new samples to InfluxDB, each at least once (rest-236, rest-237).

A stored position says up to which sample all were sent. The position moves only after the server has
confirmed the samples, so none is lost while the server or this service is down, unless the retention of the
sample ends. Some samples are sent twice, which changes nothing in InfluxDB.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING, Final

from sqlalchemy import select
from sqlalchemy.exc import DBAPIError

from meshfleet.db.tables import device as device_table
from meshfleet.errors import DatabaseUnavailable
from meshfleet.service.devices.filter_sql import resolve_filter
from meshfleet.service.devices.parameters import parse_device_filter
from meshfleet.service.influx.line_protocol import encode_line
from meshfleet.service.influx.target import InfluxTarget, TargetUnavailable
from meshfleet.service.telemetry.identifiers import describe_identifier, load_foreign_names

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sqlalchemy import Connection

    from meshfleet.db import Database
    from meshfleet.db.samples import SampleStore, StoredSample
    from meshfleet.db.samples.sample_log import SampleReader
    from meshfleet.service.devices.model import DeviceFilter
    from meshfleet.settings.model import InfluxSettings

_log = logging.getLogger(__name__)

READER_NAME: Final = "influx"

_SAMPLES_PER_WRITE: Final = 5_000
_PAUSE_SECONDS: Final = 1.0
"""Seconds to wait after all samples were sent, until new samples are read."""
_MAX_BACKOFF_SECONDS: Final = 60.0
_COUNT_SECONDS: Final = 10.0
"""Seconds between two counts of the samples that are not sent yet."""
_REFUSAL_LOG_SECONDS: Final = 3600.0
"""Seconds between two log lines about refused samples."""


class InfluxWriter:
    """Sends new samples of the service to one InfluxDB-compatible server."""

    def __init__(self, database: Database, samples: SampleStore, settings: InfluxSettings) -> None:
        self._database = database
        self._samples = samples
        self._url = settings.url
        self._filter = _build_filter(settings.filter)
        self._target = InfluxTarget(settings)
        self.queue_length = 0
        """Number of samples that are not sent yet, counted every ten seconds."""
        self.failures = 0
        """Number of failed attempts to send samples, plus the number of samples that the server refused."""
        self._counted_at = 0.0
        self._refusal_logged_at = -_REFUSAL_LOG_SECONDS
        self._is_failing = False

    async def run(self) -> None:
        """Send new samples until canceled. After a failure, try again with increasing delays."""
        reader: SampleReader | None = None
        backoff = _PAUSE_SECONDS
        try:
            while True:
                try:
                    reader = reader or await self._samples.open_reader(READER_NAME)
                    has_more = await self._send_next(reader)
                except Exception as exc:  # noqa: BLE001 # an error of the export must not end the service
                    self._report_failure(exc)
                    await asyncio.sleep(backoff)
                    backoff = min(2 * backoff, _MAX_BACKOFF_SECONDS)
                else:
                    backoff = _PAUSE_SECONDS
                    if not has_more:
                        await asyncio.sleep(_PAUSE_SECONDS)
        finally:
            self._target.close()

    async def _send_next(self, reader: SampleReader) -> bool:
        """Read and send the next samples. Return False if probably all samples have been sent."""
        if time.monotonic() - self._counted_at >= _COUNT_SECONDS:
            self.queue_length = await reader.count_unread()
            self._counted_at = time.monotonic()
        page = await reader.read(_SAMPLES_PER_WRITE)
        if page is None:
            self.queue_length = 0
            return False
        for start in range(0, len(page.samples), _SAMPLES_PER_WRITE):
            lines = await self._encode(page.samples[start : start + _SAMPLES_PER_WRITE])
            if lines:
                await self._write(lines)
        await reader.advance(page.position)
        return len(page.samples) >= _SAMPLES_PER_WRITE

    async def _encode(self, samples: Sequence[tuple[int, StoredSample]]) -> list[bytes]:
        devices = {device for device, _ in samples}
        names = await self._database.read(_load_names, self._filter, devices)
        foreign_names = await load_foreign_names(self._database, (sample.identifier for _, sample in samples))
        return await asyncio.to_thread(_encode_lines, samples, names, foreign_names)

    async def _write(self, lines: list[bytes]) -> None:
        result = await asyncio.to_thread(self._target.write, lines)
        if self._is_failing:
            self._is_failing = False
            _log.warning("%s accepts samples again", self._url)
        if result.refused:
            self.failures += result.refused
            now = time.monotonic()
            if now - self._refusal_logged_at >= _REFUSAL_LOG_SECONDS:
                self._refusal_logged_at = now
                _log.warning(
                    "%s refuses %d samples for ever, and they are skipped; others are counted in"
                    " meshfleet_integration_failures_total for an hour: %s",
                    self._url,
                    result.refused,
                    result.reason,
                )

    def _report_failure(self, exc: Exception) -> None:
        self.failures += 1
        if not self._is_failing:
            self._is_failing = True
            is_expected = isinstance(exc, TargetUnavailable | DatabaseUnavailable)
            _log.warning(
                "samples cannot be sent to %s: %s; they are kept and sent later",
                self._url,
                exc if is_expected else type(exc).__name__,
                exc_info=None if is_expected or isinstance(exc, DBAPIError) else exc,
            )


def _build_filter(pairs: Sequence[tuple[str, str]]) -> DeviceFilter | None:
    """Build a device filter from pairs of name and value in the settings. Return None without pairs."""
    if not pairs:
        return None
    single = {name: value for name, value in pairs if name != "label"}
    return parse_device_filter(
        label=[value for name, value in pairs if name == "label"],
        model_number=single.get("model"),
        firmware_version=single.get("firmware"),
        hardware_version=single.get("hardware"),
        friendly_name=single.get("name"),
        gateway=single.get("gateway"),
    )


def _load_names(
    connection: Connection, device_filter: DeviceFilter | None, devices: set[int]
) -> dict[int, str]:
    """Load the names of the devices that match the filter, by MAC in integer form.

    Without a filter, a device that is not in the registry yet has the default name that it will get there. A
    filter leaves such a device out.
    """
    columns = device_table.c
    query = select(columns.id, columns.name).where(columns.id.in_(devices))
    if device_filter is None:
        names = {device: f"Device {device & 0xFFFF:04x}" for device in devices}
        return names | {row.id: row.name for row in connection.execute(query)}
    selection = resolve_filter(connection, device_filter)
    if selection is None:
        return {}
    return {row.id: row.name for row in connection.execute(query.where(*selection.build_conditions()))}


def _encode_lines(
    samples: Sequence[tuple[int, StoredSample]], names: Mapping[int, str], foreign_names: Mapping[int, str]
) -> list[bytes]:
    lines = []
    for device, sample in samples:
        title = describe_identifier(sample.identifier, foreign_names)
        identifier = title.name or title.identifier
        if device not in names or identifier is None:
            continue
        line = encode_line(sample, device, device_name=names[device], identifier=identifier)
        if line is not None:
            lines.append(line)
    return lines
