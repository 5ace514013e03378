"""Receives multipart forms with one file, and passes the content of the file on while it arrives."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from multipart import (  # type: ignore[import-untyped] # a single module, which cannot be marked as typed
    MultipartError,
    MultipartSegment,
    PushMultipartParser,
)

from meshfleet.errors import BodyTooLarge, Fault, InvalidRequest, UnsupportedMediaType, quote_name

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from meshfleet.service.http.request import ApiRequest

FORM_MEDIA_TYPE: Final = "multipart/form-data"

_MAX_PARTS: Final = 256
_MAX_FIELD_BYTES: Final = 64 * 1024
_FORM_OVERHEAD_BYTES: Final = 1024 * 1024
"""Maximum size of a form without its file, in bytes: form fields and multipart boundaries."""
_MAX_NAME_LENGTH: Final = 255


class FormRules(NamedTuple):
    """Parts that a form may have, and the maximum size of its file."""

    file_field: str
    text_fields: frozenset[str]
    max_file_bytes: int
    needs_file_name: bool = False


class FormUpload:
    """Multipart form of a request, with one file and any number of text fields."""

    def __init__(self, request: ApiRequest, rules: FormRules) -> None:
        """Check the headers of the request.

        Raise `UnsupportedMediaType` for other bodies than forms, and `BodyTooLarge` above the limit.
        """
        self.fields: dict[str, list[str]] = {}
        self.file_name = ""
        self.size = 0
        """Number of bytes of the file that were received so far."""
        self._request = request
        self._rules = rules
        self._boundary = _parse_boundary(request)
        self._faults: list[Fault] = []
        self._seen_file = False
        self._name = ""
        self._text: bytearray | None = None
        """Content of the current part if the part is a field; None if it is the file or is ignored."""
        self._is_file = False
        self._check_size(request.content_length or 0, _FORM_OVERHEAD_BYTES)

    async def receive(self, write: Callable[[bytes], Awaitable[None]]) -> None:
        """Read the body of the request, and pass each piece of the file to `write`.

        Raise `BodyTooLarge` as soon as the body or the file exceeds its limit.
        """
        try:
            with PushMultipartParser(self._boundary, max_segment_count=_MAX_PARTS) as parser:
                await self._read_parts(parser, write)
        except MultipartError as exc:
            raise InvalidRequest([Fault("body", f"is not a valid multipart form: {exc}")]) from None

    def list_faults(self) -> list[Fault]:
        """Return the faults of the form itself, such as a missing file, but not faults of field values."""
        file = self._rules.file_field
        if not self._seen_file:
            return [*self._faults, Fault(file, "is missing")]
        if not self.size:
            return [*self._faults, Fault(file, "must not be empty")]
        return self._faults

    async def _read_parts(self, parser: Any, write: Callable[[bytes], Awaitable[None]]) -> None:
        total = 0
        async for data in self._request.stream():
            total += len(data)
            self._check_size(total, _FORM_OVERHEAD_BYTES)
            for event in parser.parse(data) if data else ():
                await self._handle_event(event, write)
                self._check_size(self.size)

    async def _handle_event(
        self, event: MultipartSegment | bytes | None, write: Callable[[bytes], Awaitable[None]]
    ) -> None:
        """Handle an event of the multipart parser: start of a part, piece of content, or end (None)."""
        if event is None:
            self._end_part()
        elif isinstance(event, MultipartSegment):
            self._begin_part(event.name or "", event.filename)
        elif self._is_file:
            self.size += len(event)
            if not self._faults:  # a rejected upload is not written
                await write(bytes(event))
        elif self._text is not None:
            self._text += event
            if len(self._text) > _MAX_FIELD_BYTES:
                self._reject_part("is too long")

    def _begin_part(self, name: str, file_name: str | None) -> None:
        """Start a part of the form: the file, a field, or a part that is rejected."""
        self._name, self._text, self._is_file = name, None, False
        if name == self._rules.file_field and self._seen_file:
            self._reject_part("must not be given more than once")
        elif name == self._rules.file_field:
            self._seen_file = self._is_file = True
            self.file_name = sanitize_file_name(file_name or "")
            if self._rules.needs_file_name and not self.file_name:
                self._faults.append(Fault(name, "must have a file name"))
        elif name in self._rules.text_fields:
            self._text = bytearray()
        else:
            self._reject_part("is not a field of this form")

    def _end_part(self) -> None:
        """Add the value of a field whose part is complete. Do nothing for the file and rejected parts."""
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

    def _check_size(self, size: int, overhead: int = 0) -> None:
        """Raise `BodyTooLarge` if a number of bytes exceeds the limit of the file plus `overhead`."""
        limit = self._rules.max_file_bytes
        if size > limit + overhead:
            raise BodyTooLarge(f"an image may have at most {limit} bytes")


def sanitize_file_name(text: str) -> str:
    """Return a file name without directories and unprintable characters, shortened if necessary.

    The result may be empty.
    """
    base = re.split(r"[/\\]", text)[-1]
    name = "".join(char for char in base if char.isprintable()).strip()
    if len(name) > _MAX_NAME_LENGTH:
        stem, dot, ending = name.rpartition(".")
        suffix = f"{dot}{ending}" if stem and len(ending) < _MAX_NAME_LENGTH // 2 else ""
        name = name[: _MAX_NAME_LENGTH - len(suffix)] + suffix
    return "" if name in {".", ".."} else name


def _parse_boundary(request: ApiRequest) -> str:
    kind, options = request.content_type
    if kind.lower() != FORM_MEDIA_TYPE:
        raise UnsupportedMediaType(f"the body must be {FORM_MEDIA_TYPE}")
    boundary = options.get("boundary", "")
    if not boundary:
        raise InvalidRequest([Fault("Content-Type", "must have a boundary")])
    return boundary
