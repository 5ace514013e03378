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

    from meshfleet.rest import Firmware
    from meshfleet.service.firmware.image_store import ImageStore
    from meshfleet.service.metrics import Metrics

_log = logging.getLogger(__name__)

MEDIA_TYPE: Final = "application/octet-stream"

_STATUS_WHOLE, _STATUS_PARTIAL = 200, 206
_SEND_BYTES: Final = 64 * 1024
"""Bytes handed to the server at a time: who takes them slowly still takes them in time."""

_RANGE: Final = re.compile(r"bytes=([0-9]{1,18})-([0-9]{1,18})?", re.IGNORECASE)


class ByteRange(NamedTuple):
    """From which byte up to which, the last one not included."""

    start: int
    stop: int


def parse_range(headers: Mapping[str, str], firmware: Firmware) -> ByteRange | None:
    """Which part somebody wants; None: all of it, as when a range is of a kind that we do not know.

    That is how RFC 9110, 14.2, has it; several parts at once are among these kinds.
    """
    found = _RANGE.fullmatch(headers.get("range", "").strip())
    if found is None or headers.get("if-range", _build_etag(firmware)) != _build_etag(firmware):
        return None
    start, last = int(found[1]), int(found[2] or firmware.size)
    if found[2] and last < start:
        return None
    if start >= firmware.size:
        raise RangeNotSatisfiable(f"the image has {firmware.size} bytes", firmware.size)
    return ByteRange(start, min(last + 1, firmware.size))


class ImageResponse(ASGIResponse):
    """An image, read while it is sent. What cannot be read at all is an error before anything is promised."""

    def __init__(
        self, images: ImageStore, firmware: Firmware, byte_range: ByteRange | None, metrics: Metrics
    ) -> None:
        chosen = byte_range or ByteRange(0, firmware.size)
        headers = {
            "accept-ranges": "bytes",
            "content-disposition": _build_disposition(firmware.file_name),
            "etag": _build_etag(firmware),
        }
        if byte_range is not None:
            headers["content-range"] = f"bytes {byte_range.start}-{byte_range.stop - 1}/{firmware.size}"
        super().__init__(
            content_length=chosen.stop - chosen.start,
            headers=headers,
            media_type=MEDIA_TYPE,
            status_code=_STATUS_WHOLE if byte_range is None else _STATUS_PARTIAL,
        )
        self._images = images
        self._firmware = firmware
        self._byte_range = chosen
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it, until the client goes."""
        state: dict[str, Any] = scope["state"]
        pieces = self._images.stream(
            bytes.fromhex(self._firmware.sha256), size=self._firmware.size, **self._byte_range._asdict()
        )
        async with aclosing(pieces):
            first = await anext(pieces)
            await self.start_response(send)
            if state.get("only_head"):
                await send({"type": "http.response.body", "body": b"", "more_body": False})
                return
            leaving = asyncio.ensure_future(_wait_for_disconnect(receive))
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
    """The name for who saves it: in plain letters, and as it is (RFC 6266)."""
    plain = "".join(char if char.isascii() and char not in '"\\%' else "_" for char in file_name)
    return f"attachment; filename=\"{plain}\"; filename*=UTF-8''{quote(file_name, safe='')}"
