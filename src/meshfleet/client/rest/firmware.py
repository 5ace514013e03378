"""`fleet.firmware`: firmware records and images."""

from __future__ import annotations

import asyncio
import hashlib
import os
import secrets
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final

from meshfleet.client.arguments import check_text, to_tuple
from meshfleet.client.rest.http_caller import RestResource
from meshfleet.client.rest.http_messages import HttpRequest, build_query
from meshfleet.client.rest.multipart import MultipartUpload
from meshfleet.errors import ImageDamaged
from meshfleet.rest.firmware import FIRMWARE_PATH, Firmware, FirmwarePage
from meshfleet.rest.paths import firmware_path, image_path, release_path, withdraw_path

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Iterable

    from meshfleet.rest.firmware import FirmwareState


# Downloads to a file, which exists only when it is complete and verified.


async def save_verified(chunks: AsyncIterator[bytes], path: Path, *, sha256: str) -> None:
    """Write chunks to a file, which appears only when it is complete and its SHA-256 hash is verified.

    Raise `ImageDamaged` if the hash of the chunks is not `sha256`.
    """
    partial = path.with_name(f".{path.name[:50]}.{secrets.token_hex(4)}")
    file = await asyncio.to_thread(partial.open, "xb")
    try:
        with file:
            await _write_verified(chunks, file, sha256)
        await asyncio.to_thread(os.replace, partial, path)
    except BaseException:
        partial.unlink()  # not in a thread: the task may be canceled while it waits
        raise


async def _write_verified(chunks: AsyncIterator[bytes], file: BinaryIO, sha256: str) -> None:
    digest = hashlib.sha256()
    async for chunk in chunks:
        digest.update(chunk)
        await asyncio.to_thread(file.write, chunk)
    if digest.hexdigest() != sha256:
        raise ImageDamaged("the downloaded image is damaged: its hash does not match the record")
    file.flush()
    await asyncio.to_thread(os.fsync, file.fileno())


_MIN_BYTES_PER_SECOND: Final = 50_000
"""Minimum rate of a firmware upload in bytes per second; a slower upload is aborted."""

_IDLE_TIMEOUT: Final = 60.0
"""Maximum seconds to wait for the next chunk of a firmware image."""


class FirmwareImages(RestResource):
    """Firmware records and images of a fleet. Methods accept the id of a record or a `Firmware` object."""

    def list(
        self,
        *,
        model_number: str | None = None,
        version: str | None = None,
        state: FirmwareState | None = None,
    ) -> AsyncGenerator[Firmware, None]:
        """List the firmware records that match all filters, the newest first."""
        query = build_query({"ModelNumber": model_number, "Version": version, "State": state})
        return self._caller.iterate_items(FirmwarePage, FIRMWARE_PATH, query)

    async def upload(  # noqa: PLR0913 # most are optional keywords
        self,
        image: str | PathLike[str] | BinaryIO,
        *,
        model_number: str,
        version: str,
        hardware_versions: str | Iterable[str] = (),
        min_version: str | None = None,
        notes: str = "",
        sha256: str | None = None,
        type: int | None = None,  # noqa: A002 # the field name in the form
        bare: bool = False,
        override: bool = False,
        file_name: str | None = None,
    ) -> Firmware:
        """Upload a firmware image, given as a path or an open file, and create its firmware record.

        The file is sent in chunks, and the service verifies the hash. The record is a draft until `release`.
        `file_name` is needed only for an open file without a name. `bare` means that the image is not in a
        package. With `override`, which needs the role admin, the service accepts an image that fails the
        content check (`ImageCheckFailed`).
        """
        source = Path(image) if isinstance(image, str | PathLike) else image
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
        upload = MultipartUpload("image", source, _select_file_name(source, file_name), fields)
        request = HttpRequest(
            method="POST",
            path=FIRMWARE_PATH,
            upload=upload,
            extra_timeout=_IDLE_TIMEOUT + upload.size / _MIN_BYTES_PER_SECOND,
        )
        return self._caller.decode(Firmware, await self._caller.send(request))

    async def show(self, firmware: str | Firmware) -> Firmware:
        """Get a firmware record."""
        return await self._caller.get(Firmware, firmware_path(to_firmware_id(firmware)))

    async def download(self, firmware: str | Firmware) -> AsyncGenerator[bytes, None]:
        """Download a firmware image in chunks, without a check of the hash; `save` checks the hash."""
        path = image_path(to_firmware_id(firmware))
        request = HttpRequest(method="GET", path=path, accept="application/octet-stream", is_repeatable=True)
        stream = await self._caller.open_stream(request, idle_timeout=_IDLE_TIMEOUT)
        try:
            while (chunk := await stream.read()) is not None:
                yield chunk
        finally:
            await stream.close()

    async def save(self, firmware: str | Firmware, path: str | PathLike[str]) -> Firmware:
        """Download a firmware image to a file, which appears only when its hash is verified."""
        record = await self.show(firmware)
        chunks = self.download(record)
        try:
            await save_verified(chunks, Path(path), sha256=record.sha256)
        finally:
            await chunks.aclose()
        return record

    async def release(self, firmware: str | Firmware) -> Firmware:
        """Release firmware, so that jobs may install it."""
        return await self._caller.post(Firmware, release_path(to_firmware_id(firmware)))

    async def withdraw(self, firmware: str | Firmware) -> Firmware:
        """Withdraw firmware: gateways can no longer download the image, and its jobs are canceled."""
        return await self._caller.post(Firmware, withdraw_path(to_firmware_id(firmware)))

    async def remove(self, firmware: str | Firmware) -> None:
        """Delete a firmware record that no job has used."""
        await self._caller.delete(firmware_path(to_firmware_id(firmware)))


def to_firmware_id(firmware: str | Firmware) -> str:
    """Return the id of a firmware record; the argument is the id or the record."""
    return check_text(firmware if isinstance(firmware, str) else firmware.id, "firmware")


def _select_file_name(file: Path | BinaryIO, given: str | None) -> str:
    """Return the file name for a firmware record: `given`, or if None the name of the file."""
    if given is not None:
        return given
    name = file.name if isinstance(file, Path) else getattr(file, "name", "")
    return Path(name).name if isinstance(name, str) else ""
