"""`fleet.firmware`: images and their records."""

from __future__ import annotations

from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final

from meshfleet.client.names import several, text_of
from meshfleet.client.rest.calls import Call, query
from meshfleet.client.rest.downloads import keep
from meshfleet.client.rest.pages import walk
from meshfleet.client.rest.uploads import Upload
from meshfleet.wire import rest

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterable

    from meshfleet.client.rest.desk import Desk
    from meshfleet.wire.rest.firmware import FirmwareState

_SLOWEST: Final = 50_000
"""Bytes per second: a connection that brings fewer is given up."""

_SILENCE: Final = 60.0
"""Seconds that the service may take for the next part of an image."""


class Firmware:
    """The firmware of a fleet. Each is named by its id, or by its record."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    def list(
        self,
        *,
        model_number: str | None = None,
        version: str | None = None,
        state: FirmwareState | None = None,
    ) -> AsyncGenerator[rest.Firmware, None]:
        """Firmware that meets all filters, the newest first."""
        chosen = query({"ModelNumber": model_number, "Version": version, "State": state})
        return walk(self._desk, rest.FirmwarePage, rest.FIRMWARE, chosen)

    async def upload(  # noqa: PLR0913 # by name, each may be left out
        self,
        image: str | PathLike[str] | BinaryIO,
        *,
        model_number: str,
        version: str,
        hardware_versions: str | Iterable[str] = (),
        min_version: str | None = None,
        notes: str = "",
        sha256: str | None = None,
        type: int | None = None,  # noqa: A002 # its name on the wire
        bare: bool = False,
        override: bool = False,
        file_name: str | None = None,
    ) -> rest.Firmware:
        """Upload an image: a path, or an open file. It is read piece by piece, and its hash is checked.

        The record is a draft until it is released. `file_name` is needed where an open file has no name.
        `bare`: the image is no package. `override` accepts one that fails its check (ImageCheckFailed).
        """
        file = Path(image) if isinstance(image, str | PathLike) else image
        single = {
            "modelNumber": model_number,
            "version": version,
            "minVersion": min_version,
            "notes": notes or None,
            "sha256": sha256,
            "type": type,
            "bare": bare or None,
            "override": override or None,
        }
        fields = query(single, {"hardwareVersions": several(hardware_versions)})
        upload = Upload("image", file, _name(file, file_name), fields)
        call = Call(
            method="POST", path=rest.FIRMWARE, upload=upload, patience=_SILENCE + upload.size / _SLOWEST
        )
        return self._desk.read(rest.Firmware, await self._desk.ask(call))

    async def show(self, firmware: str | rest.Firmware) -> rest.Firmware:
        """The record of an image."""
        return await self._desk.get(rest.Firmware, rest.firmware_path(id_of(firmware)))

    async def download(self, firmware: str | rest.Firmware) -> AsyncGenerator[bytes, None]:
        """An image in pieces; nobody checks them: see `save`."""
        path = rest.image_path(id_of(firmware))
        call = Call(method="GET", path=path, accept="application/octet-stream", is_repeatable=True)
        stream = await self._desk.open(call, silence=_SILENCE)
        try:
            while (piece := await stream.next()) is not None:
                yield piece
        finally:
            await stream.close()

    async def save(self, firmware: str | rest.Firmware, path: str | PathLike[str]) -> rest.Firmware:
        """Download an image into a file: whole and with the hash of its record, or not at all."""
        record = await self.show(firmware)
        pieces = self.download(record)
        try:
            await keep(pieces, Path(path), sha256=record.sha256)
        finally:
            await pieces.aclose()
        return record

    async def release(self, firmware: str | rest.Firmware) -> rest.Firmware:
        """Let firmware be rolled out from now on."""
        return await self._desk.post(rest.Firmware, rest.release_path(id_of(firmware)))

    async def withdraw(self, firmware: str | rest.Firmware) -> rest.Firmware:
        """Let no gateway get it any more; its jobs are cancelled."""
        return await self._desk.post(rest.Firmware, rest.withdraw_path(id_of(firmware)))

    async def remove(self, firmware: str | rest.Firmware) -> None:
        """Remove firmware that no job has used."""
        await self._desk.delete(rest.firmware_path(id_of(firmware)))


def id_of(firmware: str | rest.Firmware) -> str:
    """The id of firmware, of which the record will do, too."""
    return text_of(firmware if isinstance(firmware, str) else firmware.id, "firmware")


def _name(file: Path | BinaryIO, given: str | None) -> str:
    """What the file is called there."""
    if given is not None:
        return given
    name = file.name if isinstance(file, Path) else getattr(file, "name", "")
    return Path(name).name if isinstance(name, str) else ""
