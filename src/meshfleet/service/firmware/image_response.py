"""HTTP response with a firmware image, or with the part that the header `Range` requests."""

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

    from meshfleet.rest.firmware import Firmware
    from meshfleet.service.firmware.image_store import ImageStore
    from meshfleet.service.metrics import Metrics

_log = logging.getLogger(__name__)

MEDIA_TYPE: Final = "application/octet-stream"

_STATUS_WHOLE, _STATUS_PARTIAL = 200, 206
_SEND_BYTES: Final = 64 * 1024
"""Maximum bytes per ASGI message: slow HTTP clients must receive a message within the send timeout."""

_RANGE: Final = re.compile(r"bytes=([0-9]{1,18})-([0-9]{1,18})?", re.IGNORECASE)


class ByteRange(NamedTuple):
    """Range of bytes of an image, from offset `start` (included) to offset `stop` (excluded)."""

    start: int
    stop: int


def parse_range(headers: Mapping[str, str], firmware: Firmware) -> ByteRange | None:
    """Return the part of an image that the header `Range` requests; None means the whole image.

    An unsupported `Range`, such as several ranges at once, is ignored (RFC 9110, 14.2). Raise
    `RangeNotSatisfiable` if the range starts at or after the end of the image.
    """
    match = _RANGE.fullmatch(headers.get("range", "").strip())
    if match is None or headers.get("if-range", _build_etag(firmware)) != _build_etag(firmware):
        return None
    start, last = int(match[1]), int(match[2] or firmware.size)
    if match[2] and last < start:
        return None
    if start >= firmware.size:
        raise RangeNotSatisfiable(f"the image has {firmware.size} bytes", firmware.size)
    return ByteRange(start, min(last + 1, firmware.size))


class ImageResponse(ASGIResponse):
    """HTTP response that reads an image while sending it. If the first read fails, nothing is sent."""

    def __init__(
        self, images: ImageStore, firmware: Firmware, byte_range: ByteRange | None, metrics: Metrics
    ) -> None:
        selected = byte_range or ByteRange(0, firmware.size)
        headers = {
            "accept-ranges": "bytes",
            "content-disposition": _build_disposition(firmware.file_name),
            "etag": _build_etag(firmware),
        }
        if byte_range is not None:
            headers["content-range"] = f"bytes {byte_range.start}-{byte_range.stop - 1}/{firmware.size}"
        super().__init__(
            content_length=selected.stop - selected.start,
            headers=headers,
            media_type=MEDIA_TYPE,
            status_code=_STATUS_WHOLE if byte_range is None else _STATUS_PARTIAL,
        )
        self._images = images
        self._firmware = firmware
        self._byte_range = selected
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the image; stop if the HTTP client disconnects."""
        state: dict[str, Any] = scope["state"]
        pieces = self._images.stream_image(
            bytes.fromhex(self._firmware.sha256), size=self._firmware.size, **self._byte_range._asdict()
        )
        async with aclosing(pieces):
            first = await anext(pieces)
            await self.start_response(send)
            if state.get("only_head"):
                await send({"type": "http.response.body", "body": b"", "more_body": False})
                return
            disconnect = asyncio.ensure_future(_wait_for_disconnect(receive))
            try:
                await self._send_piece(first, send)
                async for piece in pieces:
                    if disconnect.done():
                        return
                    await self._send_piece(piece, send)
                await send({"type": "http.response.body", "body": b"", "more_body": False})
            except (OSError, RuntimeError):  # raised by ASGI and uvloop if the client has disconnected
                return
            except FleetError as exc:
                # Part of the image was sent: the client can only notice that the response is too short.
                _log.error("sending a firmware image failed: %s", exc)
                state["abort"]()
            finally:
                disconnect.cancel()

    async def _send_piece(self, piece: bytes, send: Send) -> None:
        """Send part of the image in ASGI messages of limited size."""
        for start in range(0, len(piece), _SEND_BYTES):
            body = piece[start : start + _SEND_BYTES]
            await send({"type": "http.response.body", "body": body, "more_body": True})
            self._metrics.count_image_bytes(len(body))


async def _wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _build_etag(firmware: Firmware) -> str:
    return f'"{firmware.sha256}"'


def _build_disposition(file_name: str) -> str:
    """Build the header `Content-Disposition` with the file name in ASCII and in UTF-8 (RFC 6266)."""
    ascii_name = "".join(char if char.isascii() and char not in '"\\%' else "_" for char in file_name)
    return f"attachment; filename=\"{ascii_name}\"; filename*=UTF-8''{quote(file_name, safe='')}"
