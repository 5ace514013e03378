"""HTTP response with a firmware image, or with the part that the header `Range` requests."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import quote

from meshfleet.errors import RangeNotSatisfiable
from meshfleet.service.http.binary_response import BinaryResponse

if TYPE_CHECKING:
    from collections.abc import Mapping

    from meshfleet.rest.firmware import Firmware
    from meshfleet.service.firmware.image_store import ImageStore
    from meshfleet.service.metrics import Metrics

MEDIA_TYPE: Final = "application/octet-stream"

_STATUS_WHOLE, _STATUS_PARTIAL = 200, 206

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


class ImageResponse(BinaryResponse):
    """HTTP response with an image, or with a part of it. Counts the sent bytes in the metrics."""

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
            images.stream_image(bytes.fromhex(firmware.sha256), size=firmware.size, **selected._asdict()),
            size=selected.stop - selected.start,
            media_type=MEDIA_TYPE,
            headers=headers,
            status_code=_STATUS_WHOLE if byte_range is None else _STATUS_PARTIAL,
            on_sent=metrics.count_image_bytes,
        )


def _build_etag(firmware: Firmware) -> str:
    return f'"{firmware.sha256}"'


def _build_disposition(file_name: str) -> str:
    """Build the header `Content-Disposition` with the file name in ASCII and in UTF-8 (RFC 6266)."""
    ascii_name = "".join(char if char.isascii() and char not in '"\\%' else "_" for char in file_name)
    return f"attachment; filename=\"{ascii_name}\"; filename*=UTF-8''{quote(file_name, safe='')}"
