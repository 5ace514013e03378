"""Exports the samples of many devices as one stream (rest-234, rest-235).

Each database read loads a few thousand samples, and ends before these are sent. So a slow client holds no
transaction open: the write-ahead log of SQLite stays short, and PostgreSQL can drop partitions.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec
from sqlalchemy import select

from meshfleet.db.tables import device
from meshfleet.protocol.ids import Mac, mac_from_int
from meshfleet.rest.telemetry import ExportEnd
from meshfleet.service.devices.filter_sql import resolve_filter
from meshfleet.service.telemetry import csv_export
from meshfleet.service.telemetry.chunked_read import read_in_chunks
from meshfleet.service.telemetry.identifiers import load_foreign_names
from meshfleet.service.telemetry.rest_sample import to_exported_sample

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    from sqlalchemy import Connection

    from meshfleet.db import Database
    from meshfleet.db.samples.sample import SampleStore, StoredSample
    from meshfleet.service.devices.model import DeviceFilter
    from meshfleet.service.telemetry.query_params import SampleSelection

_DEVICES_PER_PAGE: Final = 500
"""Maximum number of devices that one database read loads."""

_json_encoder: Final = msgspec.json.Encoder()


class _NamedDevice(NamedTuple):
    """Device whose samples are exported."""

    mac: Mac
    name: str


class FleetExport:
    """Reads the samples of all devices that match a filter, and encodes them as JSON lines or CSV."""

    def __init__(
        self,
        database: Database,
        store: SampleStore,
        device_filter: DeviceFilter,
        selection: SampleSelection,
        *,
        chunk_size: int,
    ) -> None:
        """Create an export. `chunk_size` is about the number of samples that are in memory at a time."""
        self._database = database
        self._store = store
        self._filter = device_filter
        self._selection = selection
        self._chunk_size = chunk_size

    async def stream_csv(self) -> AsyncIterator[bytes]:
        """Yield the export as CSV: a line with the column names, then one line per sample."""
        yield csv_export.encode_export_header()
        async for chunk in self._read_chunks():
            yield await asyncio.to_thread(_encode_csv, chunk, await self._load_identifier_names(chunk))

    async def stream_json_lines(self) -> AsyncIterator[bytes]:
        """Yield the export as JSON lines: one line per sample, then a line that marks the end."""
        count = 0
        async for chunk in self._read_chunks():
            count += len(chunk)
            yield await asyncio.to_thread(_encode_lines, chunk, await self._load_identifier_names(chunk))
        yield _json_encoder.encode_lines([ExportEnd(end=True, samples=count)])

    async def _read_chunks(self) -> AsyncIterator[list[_ExportRow]]:
        """Yield the samples in chunks, ordered by device, and by time within a device."""
        rows: list[_ExportRow] = []
        async for each in self._iterate_devices():
            query = self._selection.to_query(each.mac, newest_first=False)
            async for samples in read_in_chunks(self._store, query, list, size=self._chunk_size):
                rows += [_ExportRow(each, sample) for sample in samples]
                if len(rows) >= self._chunk_size:
                    yield rows
                    rows = []
        if rows:
            yield rows

    async def _iterate_devices(self) -> AsyncIterator[_NamedDevice]:
        """Yield the devices that match the filter, ordered by MAC."""
        last_id = -1
        while page := await self._database.read(_load_devices, self._filter, after=last_id):
            for last_id, name in page:
                yield _NamedDevice(mac_from_int(last_id), name)

    async def _load_identifier_names(self, rows: Sequence[_ExportRow]) -> dict[int, str]:
        """Load the names of identifiers that are not in the identifier catalogue, by stored number."""
        return await load_foreign_names(self._database, (row.sample.identifier for row in rows))


class _ExportRow(NamedTuple):
    """Sample with its device."""

    device: _NamedDevice
    sample: StoredSample


def _load_devices(
    connection: Connection, device_filter: DeviceFilter, *, after: int
) -> list[tuple[int, str]]:
    """Load MACs (as integers) and names of at most 500 devices that match the filter, ordered by MAC.

    Only devices with a MAC above `after` are loaded.
    """
    selection = resolve_filter(connection, device_filter)
    if selection is None:
        return []
    query = select(device.c.id, device.c.name).where(*selection.build_conditions(), device.c.id > after)
    return [
        (row.id, row.name) for row in connection.execute(query.order_by(device.c.id).limit(_DEVICES_PER_PAGE))
    ]


def _encode_csv(rows: Sequence[_ExportRow], foreign_names: Mapping[int, str]) -> bytes:
    return csv_export.encode_export_rows(
        to_exported_sample(row.sample, foreign_names, *row.device) for row in rows
    )


def _encode_lines(rows: Sequence[_ExportRow], foreign_names: Mapping[int, str]) -> bytes:
    return _json_encoder.encode_lines(
        [to_exported_sample(row.sample, foreign_names, *row.device) for row in rows]
    )
