"""`fleet.firmware`: images and their records."""

from __future__ import annotations

import asyncio
import hashlib
import os
import secrets
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final

from meshfleet import rest
from meshfleet.client.arguments import check_text, to_tuple
from meshfleet.client.rest.http_caller import iterate_items
from meshfleet.client.rest.http_messages import HttpRequest, build_query
from meshfleet.client.rest.multipart import MultipartUpload
from meshfleet.errors import ImageDamaged

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Iterable

    from meshfleet.client.rest.http_caller import HttpCaller
    from meshfleet.rest.firmware import FirmwareState


# Files that come from a service: whole and as they should be, or not at all.


async def save_verified(pieces: AsyncIterator[bytes], path: Path, *, sha256: str) -> None:
    """Write pieces into a file, which appears when all have come and have this hash; else ImageDamaged."""
    begun = path.with_name(f".{path.name[:50]}.{secrets.token_hex(4)}")
    file = await asyncio.to_thread(begun.open, "xb")
    try:
        with file:
            await _write_verified(pieces, file, sha256)
        await asyncio.to_thread(os.replace, begun, path)
    except BaseException:
        begun.unlink()  # at once: nothing may come between
        raise


async def _write_verified(pieces: AsyncIterator[bytes], file: BinaryIO, sha256: str) -> None:
    digest = hashlib.sha256()
    async for piece in pieces:
        digest.update(piece)
        await asyncio.to_thread(file.write, piece)
    if digest.hexdigest() != sha256:
        raise ImageDamaged("what came is not the image: its hash is another one")
    file.flush()
    await asyncio.to_thread(os.fsync, file.fileno())


_MIN_BYTES_PER_SECOND: Final = 50_000
"""Bytes per second: a connection that brings fewer is given up."""

_IDLE_TIMEOUT: Final = 60.0
"""Seconds that the service may take for the next part of an image."""


class FirmwareImages:
    """The firmware of a fleet. Each is named by its id, or by its record."""

    def __init__(self, caller: HttpCaller) -> None:
        self._caller = caller

    def list(
        self,
        *,
        model_number: str | None = None,
        version: str | None = None,
        state: FirmwareState | None = None,
    ) -> AsyncGenerator[rest.Firmware, None]:
        """Firmware that meets all filters, the newest first."""
        chosen = build_query({"ModelNumber": model_number, "Version": version, "State": state})
        return iterate_items(self._caller, rest.FirmwarePage, rest.FIRMWARE_PATH, chosen)

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
        fields = build_query(single, {"hardwareVersions": to_tuple(hardware_versions)})
        upload = MultipartUpload("image", file, _select_file_name(file, file_name), fields)
        call = HttpRequest(
            method="POST",
            path=rest.FIRMWARE_PATH,
            upload=upload,
            extra_timeout=_IDLE_TIMEOUT + upload.size / _MIN_BYTES_PER_SECOND,
        )
        return self._caller.decode(rest.Firmware, await self._caller.send(call))

    async def show(self, firmware: str | rest.Firmware) -> rest.Firmware:
        """The record of an image."""
        return await self._caller.get(rest.Firmware, rest.firmware_path(to_firmware_id(firmware)))

    async def download(self, firmware: str | rest.Firmware) -> AsyncGenerator[bytes, None]:
        """An image in pieces; nobody checks them: see `save`."""
        path = rest.image_path(to_firmware_id(firmware))
        call = HttpRequest(method="GET", path=path, accept="application/octet-stream", is_repeatable=True)
        stream = await self._caller.open_stream(call, idle_timeout=_IDLE_TIMEOUT)
        try:
            while (piece := await stream.read()) is not None:
                yield piece
        finally:
            await stream.close()

    async def save(self, firmware: str | rest.Firmware, path: str | PathLike[str]) -> rest.Firmware:
        """Download an image into a file: whole and with the hash of its record, or not at all."""
        record = await self.show(firmware)
        pieces = self.download(record)
        try:
            await save_verified(pieces, Path(path), sha256=record.sha256)
        finally:
            await pieces.aclose()
        return record

    async def release(self, firmware: str | rest.Firmware) -> rest.Firmware:
        """Let firmware be rolled out from now on."""
        return await self._caller.post(rest.Firmware, rest.release_path(to_firmware_id(firmware)))

    async def withdraw(self, firmware: str | rest.Firmware) -> rest.Firmware:
        """Let no gateway get it any more; its jobs are cancelled."""
        return await self._caller.post(rest.Firmware, rest.withdraw_path(to_firmware_id(firmware)))

    async def remove(self, firmware: str | rest.Firmware) -> None:
        """Remove firmware that no job has used."""
        await self._caller.delete(rest.firmware_path(to_firmware_id(firmware)))


def to_firmware_id(firmware: str | rest.Firmware) -> str:
    """The id of firmware, of which the record will do, too."""
    return check_text(firmware if isinstance(firmware, str) else firmware.id, "firmware")


def _select_file_name(file: Path | BinaryIO, given: str | None) -> str:
    """What the file is called there."""
    if given is not None:
        return given
    name = file.name if isinstance(file, Path) else getattr(file, "name", "")
    return Path(name).name if isinstance(name, str) else ""
