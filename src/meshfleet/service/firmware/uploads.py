"""Receives firmware uploads and streams them to disk, to keep little data in memory (rest-109)."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from multipart import (  # type: ignore[import-untyped] # a single module, which cannot be marked as typed
    MultipartError,
    MultipartSegment,
    PushMultipartParser,
)

from meshfleet.errors import BodyTooLarge, Fault, InvalidRequest, UnsupportedMediaType, quote_name
from meshfleet.service.firmware.partial_images import open_partial_image
from meshfleet.service.firmware.upload_form import (
    FORM_FIELDS,
    IMAGE,
    check_image,
    parse_form,
    sanitize_file_name,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from meshfleet.service.firmware.partial_images import PartialImage, ReceivedImage
    from meshfleet.service.firmware.upload_form import NewFirmware
    from meshfleet.service.http.request import ApiRequest

FORM_MEDIA_TYPE: Final = "multipart/form-data"

_MAX_PARTS: Final = 256
_MAX_FIELD_BYTES: Final = 64 * 1024
_FORM_OVERHEAD_BYTES: Final = 1024 * 1024
"""Maximum size of an upload without its image, in bytes: form fields and multipart boundaries."""

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
        self._max_image_bytes = max_image_bytes
        self._check_limit = asyncio.Semaphore(_MAX_CONCURRENT_CHECKS)

    @asynccontextmanager
    async def receive_upload(self, request: ApiRequest) -> AsyncIterator[FirmwareUpload]:
        """Receive and check a firmware upload.

        The `with` block deletes the uploaded file at its end unless the image was stored.
        """
        boundary = _parse_boundary(request)
        if (request.content_length or 0) > self._max_image_bytes + _FORM_OVERHEAD_BYTES:
            raise self._build_size_error()
        async with open_partial_image(self._folder) as image:
            parts = _FormParts(image)
            try:
                with PushMultipartParser(boundary, max_segment_count=_MAX_PARTS) as parser:
                    await self._read_parts(request, parser, parts)
            except MultipartError as exc:
                raise InvalidRequest([Fault("body", f"is not a valid multipart form: {exc}")]) from None
            received = await image.finish()
            new = parse_form(parts.fields, parts.file_name, received, parts.list_faults())
            async with self._check_limit:
                overridden = await asyncio.to_thread(check_image, new, received)
            yield FirmwareUpload(new, received, overridden)

    async def _read_parts(self, request: ApiRequest, parser: Any, parts: _FormParts) -> None:
        """Read the body of an upload, and pass its parts to `parts`. Raise `BodyTooLarge` above a limit."""
        total = 0
        async for data in request.stream():
            total += len(data)
            if total > self._max_image_bytes + _FORM_OVERHEAD_BYTES:
                raise self._build_size_error()
            for event in parser.parse(data) if data else ():
                await parts.handle_event(event)
                if parts.size > self._max_image_bytes:
                    raise self._build_size_error()

    def _build_size_error(self) -> BodyTooLarge:
        return BodyTooLarge(f"an image may have at most {self._max_image_bytes} bytes")


class _FormParts:
    """Collects the parts of a multipart form while the form arrives."""

    def __init__(self, image: PartialImage) -> None:
        self.fields: dict[str, list[str]] = {}
        self.file_name = ""
        self.size = 0
        """Number of bytes of the image that were received so far."""
        self._image = image
        self._faults: list[Fault] = []
        self._seen_image = False
        self._name = ""
        self._text: bytearray | None = None
        """Content of the current part if the part is a field; None if it is the image or is ignored."""
        self._is_image = False

    async def handle_event(self, event: MultipartSegment | bytes | None) -> None:
        """Handle an event of the multipart parser: start of a part, piece of content, or end (None)."""
        if event is None:
            self._end_part()
        elif isinstance(event, MultipartSegment):
            self._begin_part(event.name or "", event.filename)
        elif self._is_image:
            self.size += len(event)
            if not self._faults:  # a rejected upload is not written
                await self._image.write(bytes(event))
        elif self._text is not None:
            self._text += event
            if len(self._text) > _MAX_FIELD_BYTES:
                self._reject_part("is too long")

    def list_faults(self) -> list[Fault]:
        """Return the faults of the form itself, such as a missing image, but not faults of field values."""
        if not self._seen_image:
            return [*self._faults, Fault(IMAGE, "is missing")]
        if not self.size:
            return [*self._faults, Fault(IMAGE, "must not be empty")]
        return self._faults

    def _begin_part(self, name: str, file_name: str | None) -> None:
        """Start a part of the form: the image, a field, or a part that is rejected."""
        self._name, self._text, self._is_image = name, None, False
        if name == IMAGE and self._seen_image:
            self._reject_part("must not be given more than once")
        elif name == IMAGE:
            self._seen_image = self._is_image = True
            self.file_name = sanitize_file_name(file_name or "")
            if not self.file_name:
                self._faults.append(Fault(IMAGE, "must have a file name"))
        elif name in FORM_FIELDS:
            self._text = bytearray()
        else:
            self._reject_part("is not a field of this form")

    def _end_part(self) -> None:
        """Add the value of a field whose part is complete. Do nothing for the image and rejected parts."""
        if self._text is None:
            return
        try:
            self.fields.setdefault(self._name, []).append(self._text.decode())
        except UnicodeDecodeError:
            self._reject_part("must be UTF-8")

    def _reject_part(self, reason: str) -> None:
        """Record a fault of the current part, and ignore the rest of the part."""
        self._faults.append(Fault(quote_name(self._name), reason))
        self._text = None


def _parse_boundary(request: ApiRequest) -> str:
    kind, options = request.content_type
    if kind.lower() != FORM_MEDIA_TYPE:
        raise UnsupportedMediaType(f"the body must be {FORM_MEDIA_TYPE}")
    boundary = options.get("boundary", "")
    if not boundary:
        raise InvalidRequest([Fault("Content-Type", "must have a boundary")])
    return boundary
