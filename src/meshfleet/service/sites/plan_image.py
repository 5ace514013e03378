"""Recognizes the picture of a floor by its bytes, and reads its size: PNG, JPEG or SVG (rest-253).

The content type and the file name of an upload are not trusted. A picture is not decoded, but what its header
says must be possible: browsers reserve memory for all pixels before they find out.
"""

from __future__ import annotations

import re
import zlib
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from xml.parsers import expat

from meshfleet.errors import Fault, InvalidRequest, UnsupportedMediaType

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from meshfleet.rest.sites import PlanType

IMAGE: Final = "image"
"""Form field with the picture, which errors name."""

_MAX_SIDE: Final = 30_000
_MAX_PIXELS: Final = 100_000_000
"""Maximum pixels of a picture, as many as browsers and phones can show."""


class PictureSize(NamedTuple):
    """Content type of a picture, and its size in pixels as browsers show it."""

    content_type: PlanType
    width: float
    height: float


def inspect_picture(content: bytes | bytearray) -> PictureSize:
    """Return the type and size of a picture. Blocking: call it in a thread.

    Raise `UnsupportedMediaType` if it is neither PNG, JPEG nor SVG, and `InvalidRequest` if it is damaged.
    """
    if content.startswith(_PNG_SIGNATURE):
        picture = PictureSize("image/png", *_inspect_png(content))
    elif content.startswith(b"\xff\xd8\xff"):
        picture = PictureSize("image/jpeg", *_inspect_jpeg(content))
    elif _XML_START.match(content):
        picture = PictureSize("image/svg+xml", *_inspect_svg(content))
    else:
        raise _build_type_error()
    return picture


def _build_type_error() -> UnsupportedMediaType:
    return UnsupportedMediaType("the image must be PNG, JPEG or SVG")


def _build_fault(reason: str) -> InvalidRequest:
    return InvalidRequest([Fault(IMAGE, reason)])


def _check_pixels(width: int, height: int) -> None:
    if not (1 <= width <= _MAX_SIDE and 1 <= height <= _MAX_SIDE and width * height <= _MAX_PIXELS):
        raise _build_fault(
            f"has {width} by {height} pixels; at most {_MAX_SIDE} on a side and {_MAX_PIXELS} in total are"
            " allowed"
        )


# PNG (ISO/IEC 15948): a signature, then chunks of length, type, data and CRC; IHDR first and IEND last.

_PNG_SIGNATURE: Final = b"\x89PNG\r\n\x1a\n"
_HEADER_BYTES: Final = 13
_CHUNK_OVERHEAD: Final = 12
_SAMPLES_PER_PIXEL: Final[Mapping[int, int]] = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}
"""Samples of a pixel by color type."""
_MAX_DEFLATE_RATIO: Final = 1032
"""Largest number of bytes that a byte of compressed data can stand for."""


class _Chunk(NamedTuple):
    """Chunk of a PNG file; `start` and `end` are the offsets of its data."""

    type: bytes
    start: int
    end: int


def _inspect_png(content: bytes | bytearray) -> tuple[int, int]:
    """Return width and height. Check that the file is complete and has enough data for all pixels."""
    chunks = _iterate_chunks(content)
    header = next(chunks)
    if header.type != b"IHDR" or header.end - header.start != _HEADER_BYTES:
        raise _build_fault("is a damaged PNG: its header is missing")
    data = content[header.start : header.end]
    if zlib.crc32(b"IHDR" + data) != int.from_bytes(content[header.end : header.end + 4]):
        raise _build_fault("is a damaged PNG: the checksum of its header is wrong")
    width, height = int.from_bytes(data[:4]), int.from_bytes(data[4:8])
    samples = _SAMPLES_PER_PIXEL.get(data[9])
    if samples is None:
        raise _build_fault("is a damaged PNG: its color type is unknown")
    _check_pixels(width, height)
    compressed = sum(each.end - each.start for each in chunks if each.type == b"IDAT")
    if width * height * samples * data[8] // 8 > compressed * _MAX_DEFLATE_RATIO:
        raise _build_fault(f"is a damaged PNG: it has not enough data for {width} by {height} pixels")
    return width, height


def _iterate_chunks(content: bytes | bytearray) -> Iterator[_Chunk]:
    """Yield the chunks of a PNG file up to its end. Raise `InvalidRequest` if the file ends before."""
    offset = len(_PNG_SIGNATURE)
    while offset + _CHUNK_OVERHEAD <= len(content):
        start = offset + 8
        end = start + int.from_bytes(content[offset : offset + 4])
        chunk = _Chunk(bytes(content[offset + 4 : start]), start, end)
        offset = end + 4
        if offset > len(content):
            break
        yield chunk
        if chunk.type == b"IEND":
            return
    raise _build_fault("is a damaged PNG: its end is missing")


# JPEG (ITU-T T.81): segments of a marker, a length and data. A start-of-frame segment has the size.

_START_OF_FRAME: Final = {*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC}
_MARKERS_WITHOUT_DATA: Final = {0x01, *range(0xD0, 0xD9)}
_START_OF_SCAN, _APPLICATION_1 = 0xDA, 0xE1
_FRAME_BYTES: Final = 6
_ORIENTATION_TAG: Final = 0x0112
_FIRST_TURNED: Final = 5
"""Orientations from 5 to 8 turn the picture by a quarter: browsers show its height as its width."""
_LAST_TURNED: Final = 8


def _inspect_jpeg(content: bytes | bytearray) -> tuple[int, int]:
    """Return width and height as browsers show them."""
    orientation = 1
    for marker, data in _iterate_segments(content):
        if marker == _APPLICATION_1 and data.startswith(b"Exif\0\0"):
            orientation = _read_orientation(data[6:])
        elif marker in _START_OF_FRAME:
            if len(data) < _FRAME_BYTES:
                break
            height, width = int.from_bytes(data[1:3]), int.from_bytes(data[3:5])
            _check_pixels(width, height)
            is_turned = _FIRST_TURNED <= orientation <= _LAST_TURNED
            return (height, width) if is_turned else (width, height)
    raise _build_fault("is a damaged JPEG: its size is missing")


def _iterate_segments(content: bytes | bytearray) -> Iterator[tuple[int, bytes]]:
    """Yield marker and data of the segments before the compressed data."""
    offset = 2
    while offset + 4 <= len(content) and content[offset] == 0xFF:  # noqa: PLR2004 # the first byte of a marker
        marker = content[offset + 1]
        if marker == 0xFF or marker in _MARKERS_WITHOUT_DATA:  # noqa: PLR2004 # fill byte
            offset += 1 if marker == 0xFF else 2  # noqa: PLR2004
            continue
        length = int.from_bytes(content[offset + 2 : offset + 4])
        if marker == _START_OF_SCAN:
            return
        yield marker, bytes(content[offset + 4 : offset + 2 + length])
        offset += 2 + max(length, 2)


def _read_orientation(exif: bytes) -> int:
    """Return the orientation in Exif data, which has the form of a TIFF file; 1 if it has none."""
    order = {b"II": "little", b"MM": "big"}.get(exif[:2])
    if order is None:
        return 1

    def read(offset: int, size: int) -> int:
        return int.from_bytes(exif[offset : offset + size], order)  # type: ignore[arg-type] # a literal of the table

    directory = read(4, 4)
    for index in range(min(read(directory, 2), len(exif) // 12)):
        entry = directory + 2 + 12 * index
        if read(entry, 2) == _ORIENTATION_TAG:
            return read(entry + 8, 2)
    return 1


# SVG: the root element has the size. Entities could make a small file a huge one, so there must be none.

_XML_START: Final = re.compile(rb"(?:\xef\xbb\xbf)?\s*<|\xff\xfe<\0|\xfe\xff\0<")
_SVG_ROOT: Final = "http://www.w3.org/2000/svg svg"
_MAX_DEPTH: Final = 256
_MAX_ELEMENTS: Final = 1_000_000
_LENGTH: Final = re.compile(r"\s*\+?([0-9]{1,9}(?:\.[0-9]{0,9})?|\.[0-9]{1,9})\s*(px|mm|cm|in|pt|pc)?\s*")
_PIXELS_PER_UNIT: Final = {"px": 1, "mm": 96 / 25.4, "cm": 96 / 2.54, "in": 96, "pt": 96 / 72, "pc": 16}
_VIEW_BOX_PARTS: Final = 4
_PARSED_BYTES: Final = 256 * 1024
"""Bytes that are parsed at a time: the parser keeps a copy of them."""


class _RefusedSvg(Exception):
    """An SVG file is well-formed so far, but refused. The message says why."""


class _SvgReader:
    """Handlers of the XML parser that check an SVG file, and keep the attributes of its root."""

    def __init__(self) -> None:
        self.root: dict[str, str] | None = None
        self._depth = 0
        self._elements = 0
        self.parser = expat.ParserCreate(namespace_separator=" ")
        self.parser.StartElementHandler = self._start_element
        self.parser.EndElementHandler = self._end_element
        self.parser.StartDoctypeDeclHandler = self._refuse_doctype

    def _start_element(self, name: str, attributes: dict[str, str]) -> None:
        if self.root is None:
            if name != _SVG_ROOT:
                raise _build_type_error()
            self.root = attributes
        self._depth += 1
        self._elements += 1
        if self._depth > _MAX_DEPTH or self._elements > _MAX_ELEMENTS:
            raise _RefusedSvg(f"has more than {_MAX_ELEMENTS} elements, or more than {_MAX_DEPTH} levels")

    def _end_element(self, _name: str) -> None:
        self._depth -= 1

    def _refuse_doctype(self, name: str, *_declaration: Any) -> None:
        if name != "svg":
            raise _build_type_error()
        raise _RefusedSvg("must not have a DOCTYPE: save it as plain SVG")


def _inspect_svg(content: bytes | bytearray) -> tuple[float, float]:
    """Return width and height in pixels of an SVG file that is well-formed XML without a DOCTYPE."""
    reader = _SvgReader()
    try:
        with memoryview(content) as view:
            for start in range(0, len(view), _PARSED_BYTES):
                reader.parser.Parse(view[start : start + _PARSED_BYTES], False)  # noqa: FBT003 # positional only
        reader.parser.Parse(b"", True)  # noqa: FBT003
    except expat.ExpatError as exc:
        if reader.root is None:
            raise _build_type_error() from None
        raise _build_fault(f"is not well-formed XML: {exc}") from None
    except _RefusedSvg as exc:
        raise _build_fault(str(exc)) from None
    width, height = _read_svg_size(reader.root or {})
    if not (0 < width <= _MAX_SIDE and 0 < height <= _MAX_SIDE):
        raise _build_fault(f"must be more than 0 and at most {_MAX_SIDE} pixels wide and high")
    return width, height


def _read_svg_size(root: Mapping[str, str]) -> tuple[float, float]:
    """Return the size in pixels from `width` and `height`, or from `viewBox` if they are relative or absent.

    If only one of them is absolute, the other one follows from the proportions of `viewBox`.
    """
    width, height = _parse_length(root.get("width", "")), _parse_length(root.get("height", ""))
    if width is not None and height is not None:
        return width, height
    box = _parse_view_box(root.get("viewBox", ""))
    if box is None:
        raise _build_fault("must have a width and a height, or a viewBox")
    if width is not None:
        return width, width * box[1] / box[0]
    if height is not None:
        return height * box[0] / box[1], height
    return box


def _parse_length(text: str) -> float | None:
    """Return an absolute length in pixels; None for a relative or malformed one."""
    match = _LENGTH.fullmatch(text)
    return None if match is None else float(match[1]) * _PIXELS_PER_UNIT[match[2] or "px"]


def _parse_view_box(text: str) -> tuple[float, float] | None:
    """Return width and height of a `viewBox`; None if it is malformed or empty."""
    parts = re.split(r"[\s,]+", text.strip())
    if len(parts) != _VIEW_BOX_PARTS:
        return None
    width, height = _parse_length(parts[2]), _parse_length(parts[3])
    return (width, height) if width and height else None
