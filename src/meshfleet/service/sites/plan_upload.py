"""Receives the picture of a floor with its reference points as a multipart form (rest-251, rest-253)."""

from __future__ import annotations

import asyncio
import hashlib
import re
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final, NamedTuple

from meshfleet.errors import Fault, InvalidRequest, TooManyAttempts
from meshfleet.rest.sites import MAX_PLAN_BYTES, ReferencePoint
from meshfleet.service.http.form_upload import FormRules, FormUpload
from meshfleet.service.sites.plan_image import IMAGE, PictureSize, inspect_picture
from meshfleet.service.sites.plan_reference import REFERENCE, check_reference, parse_reference

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from meshfleet.service.http.request import ApiRequest

SHA256: Final = "sha256"

_RULES: Final = FormRules(IMAGE, frozenset({REFERENCE, SHA256}), MAX_PLAN_BYTES)
_MAX_UPLOADS: Final = 8
"""Maximum number of pictures that are received at the same time, because each is in memory."""
_MAX_CHECKS: Final = 2
"""Maximum number of pictures that are checked at the same time: a large SVG file takes a second."""
_RETRY_AFTER_SECONDS: Final = 10
_HASH: Final = re.compile("[0-9A-Fa-f]{64}")


class ReceivedPlan(NamedTuple):
    """Picture of a floor as received, with its size and reference points."""

    content: bytearray
    sha256: bytes
    picture: PictureSize
    reference: tuple[ReferencePoint, ...]


class PlanReceiver:
    """Receives pictures of floors, each once in memory, and only a few at the same time."""

    def __init__(self) -> None:
        self._uploads = 0
        self._check_limit = asyncio.Semaphore(_MAX_CHECKS)

    @asynccontextmanager
    async def receive(self, request: ApiRequest) -> AsyncIterator[ReceivedPlan]:
        """Receive and check a picture, and count it as received until the end of the `with` block.

        Raise `TooManyAttempts` if too many are received already, `BodyTooLarge` as soon as the picture is too
        large, `UnsupportedMediaType` for other files than pictures, and `InvalidRequest` for other faults.
        """
        form = FormUpload(request, _RULES)
        if self._uploads >= _MAX_UPLOADS:
            raise TooManyAttempts(_RETRY_AFTER_SECONDS, "too many plans are being uploaded")
        self._uploads += 1
        try:
            yield await self._receive_form(form)
        finally:
            self._uploads -= 1

    async def _receive_form(self, form: FormUpload) -> ReceivedPlan:
        content = bytearray()

        async def append_piece(piece: bytes) -> None:
            content.extend(piece)

        await form.receive(append_piece)
        fields = _read_fields(form)
        async with self._check_limit:
            picture, sha256 = await asyncio.to_thread(_inspect_content, content)
        if fields.sha256 not in {None, sha256.hex()}:
            raise InvalidRequest(
                [Fault(SHA256, f"does not match the image, whose SHA-256 is {sha256.hex()}")]
            )
        check_reference(fields.reference, picture)
        return ReceivedPlan(content, sha256, picture, fields.reference)


class _FormFields(NamedTuple):
    """Text fields of the form of a plan."""

    reference: tuple[ReferencePoint, ...]
    sha256: str | None


def _read_fields(form: FormUpload) -> _FormFields:
    """Parse the text fields of a form. Raise `InvalidRequest` with the faults of the form."""
    faults = form.list_faults()
    for field, is_required in ((REFERENCE, True), (SHA256, False)):
        count = len(form.fields.get(field, ()))
        if count > 1:
            faults.append(Fault(field, "must not be given more than once"))
        elif is_required and not count:
            faults.append(Fault(field, "is missing"))
    sha256 = next(iter(form.fields.get(SHA256, ())), None)
    if sha256 is not None and not _HASH.fullmatch(sha256):
        faults.append(Fault(SHA256, "must be 64 hex digits"))
    if faults:
        raise InvalidRequest(faults)
    return _FormFields(parse_reference(form.fields[REFERENCE][0]), sha256 and sha256.lower())


def _inspect_content(content: bytearray) -> tuple[PictureSize, bytes]:
    """Return the type and size of a picture, and its SHA-256."""
    return inspect_picture(content), hashlib.sha256(content).digest()
