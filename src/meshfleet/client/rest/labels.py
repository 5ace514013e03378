"""`fleet.labels`: words attached to devices."""

from __future__ import annotations

from typing import TYPE_CHECKING

from meshfleet.client.names import id_of, several
from meshfleet.client.rest.pages import walk
from meshfleet.wire import rest

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterable

    from meshfleet.client.rest.desk import Desk
    from meshfleet.wire.rest import Label


class Labels:
    """All labels of a fleet. What is on a device is changed at `fleet.devices`."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    def list(self) -> AsyncGenerator[Label, None]:
        """All labels, each with the number of devices that have it."""
        return walk(self._desk, rest.LabelPage, rest.LABELS)

    async def add(self, label: str, devices: str | Iterable[str] = ()) -> Label:
        """Add a label, and put it on devices; one that exists stays as it is."""
        ids = tuple(id_of(each, "devices") for each in several(devices))
        return await self._desk.post(rest.Label, rest.LABELS, rest.NewLabel(label=label, device_ids=ids))

    async def remove(self, label: str) -> None:
        """Remove a label from everything."""
        await self._desk.delete(rest.label_path(rest.parse_label(label)))
