"""Receives firmware uploads and streams them to disk, to keep little data in memory (rest-109)."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final, NamedTuple

from meshfleet.service.firmware.partial_images import open_partial_image
from meshfleet.service.firmware.upload_form import FORM_FIELDS, IMAGE, check_image, parse_form
from meshfleet.service.http.form_upload import FormRules, FormUpload

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from meshfleet.service.firmware.partial_images import ReceivedImage
    from meshfleet.service.firmware.upload_form import NewFirmware
    from meshfleet.service.http.request import ApiRequest

_MAX_CONCURRENT_CHECKS: Final = 2
"""Maximum number of concurrent image checks. A check unpacks the image in memory."""


class FirmwareUpload(NamedTuple):
    """Received image, with the fields of the firmware record to create for the image."""

    record: NewFirmware
    image: ReceivedImage
    overridden: str
    """Fault of the image that the form field `override` accepted; "" if there was no fault."""


class UploadReceiver:
    """Receives firmware uploads, each into its own file in one directory."""

    def __init__(self, folder: Path, *, max_image_bytes: int) -> None:
        """Create a receiver that rejects images of more than `max_image_bytes` bytes."""
        self._folder = folder
        self._rules = FormRules(IMAGE, FORM_FIELDS, max_image_bytes, needs_file_name=True)
        self._check_limit = asyncio.Semaphore(_MAX_CONCURRENT_CHECKS)

    @asynccontextmanager
    async def receive_upload(self, request: ApiRequest) -> AsyncIterator[FirmwareUpload]:
        """Receive and check a firmware upload.

        The `with` block deletes the uploaded file at its end unless the image was stored.
        """
        form = FormUpload(request, self._rules)
        async with open_partial_image(self._folder) as image:
            await form.receive(image.write)
            received = await image.finish()
            new = parse_form(form.fields, form.file_name, received, form.list_faults())
            async with self._check_limit:
                overridden = await asyncio.to_thread(check_image, new, received)
            yield FirmwareUpload(new, received, overridden)
