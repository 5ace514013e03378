"""Takes uploads in, piece by piece: no more than a few pieces are ever in memory (rest-109)."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from multipart import (  # type: ignore[import-untyped] # a single file, which cannot be marked as typed
    MultipartError,
    MultipartSegment,
    PushMultipartParser,
)

from meshfleet.errors import BodyTooLarge, Fault, InvalidRequest, UnsupportedMediaType, plain
from meshfleet.service.firmware.arriving import arriving
from meshfleet.service.firmware.form import FIELDS, IMAGE, check_image, read_file_name, read_form

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from meshfleet.service.firmware.arriving import Arrived, Arriving
    from meshfleet.service.firmware.form import NewFirmware
    from meshfleet.service.http.asked import Asked

FORM: Final = "multipart/form-data"

_MOST_PARTS: Final = 256
_LONGEST_FIELD: Final = 64 * 1024
_REST: Final = 1024 * 1024
"""Bytes of an upload besides its image: fields, and what parts them."""

_CHECKED_AT_ONCE: Final = 2
"""Packages that are unpacked in memory."""


class Upload(NamedTuple):
    """An image that arrived whole, and what to make of it."""

    new: NewFirmware
    image: Arrived
    overridden: str
    """What the check of the image found and `override` accepted."""


class Intake:
    """Takes uploads in, each into a file in a folder."""

    def __init__(self, folder: Path, *, largest: int) -> None:
        """`largest`: bytes of an image."""
        self._folder = folder
        self._largest = largest
        self._checking = asyncio.Semaphore(_CHECKED_AT_ONCE)

    @asynccontextmanager
    async def receive(self, request: Asked) -> AsyncIterator[Upload]:
        """An upload, when all of it has come and is right; it is gone at the end unless it is kept."""
        boundary = _boundary(request)
        if (request.content_length or 0) > self._largest + _REST:
            raise self._too_large()
        async with arriving(self._folder) as image:
            parts = _Parts(image)
            try:
                with PushMultipartParser(boundary, max_segment_count=_MOST_PARTS) as parser:
                    await self._read(request, parser, parts)
            except MultipartError as exc:
                raise InvalidRequest([Fault("body", f"is no form that can be read: {exc}")]) from None
            arrived = await image.finish()
            new = read_form(parts.fields, parts.file_name, arrived, parts.all_faults())
            async with self._checking:
                overridden = await asyncio.to_thread(check_image, new, arrived)
            yield Upload(new, arrived, overridden)

    async def _read(self, request: Asked, parser: Any, parts: _Parts) -> None:
        total = 0
        async for data in request.stream():
            total += len(data)
            if total > self._largest + _REST:
                raise self._too_large()
            for event in parser.parse(data) if data else ():
                await parts.take(event)
                if parts.size > self._largest:
                    raise self._too_large()

    def _too_large(self) -> BodyTooLarge:
        return BodyTooLarge(f"an image may have {self._largest} bytes")


class _Parts:
    """The parts of a form, as they come."""

    def __init__(self, image: Arriving) -> None:
        self.fields: dict[str, list[str]] = {}
        self.file_name = ""
        self.size = 0
        """Bytes of the image so far."""
        self._image = image
        self._faults: list[Fault] = []
        self._seen_image = False
        self._name = ""
        self._text: bytearray | None = None
        """Of the part that comes at the moment, if it is a field; None: it is the image, or passed over."""
        self._is_image = False

    async def take(self, event: MultipartSegment | bytes | None) -> None:
        """Take the beginning of a part, a piece of it, or its end, which is None."""
        if event is None:
            self._end()
        elif isinstance(event, MultipartSegment):
            self._begin(event.name or "", event.filename)
        elif self._is_image:
            self.size += len(event)
            if not self._faults:  # else nobody will want it
                await self._image.write(bytes(event))
        elif self._text is not None:
            self._text += event
            if len(self._text) > _LONGEST_FIELD:
                self._pass_over("is too long")

    def all_faults(self) -> list[Fault]:
        """What is wrong with the parts as such."""
        if not self._seen_image:
            return [*self._faults, Fault(IMAGE, "is missing")]
        if not self.size:
            return [*self._faults, Fault(IMAGE, "is empty")]
        return self._faults

    def _begin(self, name: str, file_name: str | None) -> None:
        self._name, self._text, self._is_image = name, None, False
        if name == IMAGE and self._seen_image:
            self._pass_over("is given more than once")
        elif name == IMAGE:
            self._seen_image = self._is_image = True
            self.file_name = read_file_name(file_name or "")
            if not self.file_name:
                self._faults.append(Fault(IMAGE, "has no file name"))
        elif name in FIELDS:
            self._text = bytearray()
        else:
            self._pass_over("is not a part here")

    def _end(self) -> None:
        if self._text is None:
            return
        try:
            self.fields.setdefault(self._name, []).append(self._text.decode())
        except UnicodeDecodeError:
            self._pass_over("is not UTF-8")

    def _pass_over(self, reason: str) -> None:
        self._faults.append(Fault(plain(self._name), reason))
        self._text = None


def _boundary(request: Asked) -> str:
    kind, options = request.content_type
    if kind.lower() != FORM:
        raise UnsupportedMediaType(f"the body must be {FORM}")
    boundary = options.get("boundary", "")
    if not boundary:
        raise InvalidRequest([Fault("Content-Type", "names no boundary")])
    return boundary
