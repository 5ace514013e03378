"""An image as an answer: whole, or a part of it for who was interrupted."""

from __future__ import annotations

import asyncio
import logging
import re
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import quote

from litestar.response.base import ASGIResponse

from meshfleet.errors import FleetError, RangeNotSatisfiable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from litestar.types import Receive, Scope, Send

    from meshfleet.service.firmware.images import Images
    from meshfleet.service.operations.figures import Figures
    from meshfleet.wire.rest import Firmware

_log = logging.getLogger(__name__)

MEDIA_TYPE: Final = "application/octet-stream"

_WHOLE, _PART = 200, 206
_AT_ONCE: Final = 64 * 1024
"""Bytes handed to the server at a time: who takes them slowly still takes them in time."""

_RANGE: Final = re.compile(r"bytes=([0-9]{1,18})-([0-9]{1,18})?", re.IGNORECASE)


class Span(NamedTuple):
    """From which byte up to which, the last one not included."""

    start: int
    stop: int


def read_span(headers: Mapping[str, str], firmware: Firmware) -> Span | None:
    """Which part somebody wants; None: all of it, as when a range is of a kind that we do not know.

    That is how RFC 9110, 14.2, has it; several parts at once are among these kinds.
    """
    found = _RANGE.fullmatch(headers.get("range", "").strip())
    if found is None or headers.get("if-range", _tag(firmware)) != _tag(firmware):
        return None
    start, last = int(found[1]), int(found[2] or firmware.size)
    if found[2] and last < start:
        return None
    if start >= firmware.size:
        raise RangeNotSatisfiable(f"the image has {firmware.size} bytes", firmware.size)
    return Span(start, min(last + 1, firmware.size))


class ImageAnswer(ASGIResponse):
    """An image, read while it is sent. What cannot be read at all is an error before anything is promised."""

    def __init__(self, images: Images, firmware: Firmware, span: Span | None, figures: Figures) -> None:
        chosen = span or Span(0, firmware.size)
        headers = {
            "accept-ranges": "bytes",
            "content-disposition": _disposition(firmware.file_name),
            "etag": _tag(firmware),
        }
        if span is not None:
            headers["content-range"] = f"bytes {span.start}-{span.stop - 1}/{firmware.size}"
        super().__init__(
            content_length=chosen.stop - chosen.start,
            headers=headers,
            media_type=MEDIA_TYPE,
            status_code=_WHOLE if span is None else _PART,
        )
        self._images = images
        self._firmware = firmware
        self._span = chosen
        self._figures = figures

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it, until the client goes."""
        state: dict[str, Any] = scope["state"]
        pieces = self._images.read(
            bytes.fromhex(self._firmware.sha256), size=self._firmware.size, **self._span._asdict()
        )
        async with aclosing(pieces):
            first = await anext(pieces)
            await self.start_response(send)
            if state.get("only_head"):
                await send({"type": "http.response.body", "body": b"", "more_body": False})
                return
            leaving = asyncio.ensure_future(_leave(receive))
            try:
                await self._send(first, send)
                async for piece in pieces:
                    if leaving.done():
                        return
                    await self._send(piece, send)
                await send({"type": "http.response.body", "body": b"", "more_body": False})
            except (OSError, RuntimeError):  # as ASGI and uvloop say that nobody is there any more
                return
            except FleetError as exc:
                # Some of it is sent: all that is left is to let it end before its length.
                _log.error("an image broke off: %s", exc)
                state["abort"]()
            finally:
                leaving.cancel()

    async def _send(self, piece: bytes, send: Send) -> None:
        for start in range(0, len(piece), _AT_ONCE):
            body = piece[start : start + _AT_ONCE]
            await send({"type": "http.response.body", "body": body, "more_body": True})
            self._figures.count_image_bytes(len(body))


async def _leave(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _tag(firmware: Firmware) -> str:
    return f'"{firmware.sha256}"'


def _disposition(file_name: str) -> str:
    """The name for who saves it: in plain letters, and as it is (RFC 6266)."""
    plain = "".join(char if char.isascii() and char not in '"\\%' else "_" for char in file_name)
    return f"attachment; filename=\"{plain}\"; filename*=UTF-8''{quote(file_name, safe='')}"
