"""Signed URLs with which gateways download firmware images without other credentials (firmware-20).

A URL is valid for a limited time, for one firmware record and one gateway. The service stores no URLs: the
token in the URL contains the expiry time, the firmware id, the gateway, and a signature of these values.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import struct
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import quote

from meshfleet.errors import NotFound
from meshfleet.protocol.ids import Mac
from meshfleet.rest.firmware import IMAGES_PATH

if TYPE_CHECKING:
    from meshfleet.rest.firmware import Firmware
    from meshfleet.service.clock import Now

VALIDITY_MS: Final = 15 * 60 * 1000
"""Milliseconds for which a signed image URL is valid."""

_TICKET_FORMAT: Final = struct.Struct(">Q8s6s")
_SIGNATURE_SIZE: Final = 32
_PREFIX: Final = "fw-"


class ImageTicket(NamedTuple):
    """Content of a valid token: the firmware record and the gateway for which the token was issued."""

    firmware: str
    """Id of the firmware record."""
    gateway: Mac


class ImageUrlSigner:
    """Builds signed image URLs and verifies their tokens. All processes of the service share the secret."""

    def __init__(self, secret: bytes, url: str, now: Now) -> None:
        """Create a signer of image URLs. `url` is the base URL under which gateways reach the service."""
        self._secret = secret
        self._url = url
        self._now = now

    def build_url(self, firmware: Firmware, gateway: Mac) -> str:
        """Build the signed URL with which a gateway downloads the image of a firmware record."""
        number = bytes.fromhex(firmware.id.removeprefix(_PREFIX))
        ticket = _TICKET_FORMAT.pack(self._now() + VALIDITY_MS, number, bytes.fromhex(gateway))
        token = _encode_token(ticket + self._sign_ticket(ticket))
        return f"{self._url}{IMAGES_PATH}/{token}/{quote(firmware.file_name, safe='')}"

    def verify_token(self, token: str) -> ImageTicket:
        """Return the content of the token in an image URL. Raise `NotFound` if it is invalid or expired."""
        try:
            data = base64.b64decode(token + "=" * (-len(token) % 4), altchars=b"-_", validate=True)
        except (binascii.Error, ValueError):
            raise _build_invalid_url_error() from None
        # A base64 decoder accepts several encodings of the same data: only the canonical one is valid.
        if len(data) != _TICKET_FORMAT.size + _SIGNATURE_SIZE or _encode_token(data) != token:
            raise _build_invalid_url_error()
        ticket, signature = data[: _TICKET_FORMAT.size], data[_TICKET_FORMAT.size :]
        if not hmac.compare_digest(signature, self._sign_ticket(ticket)):
            raise _build_invalid_url_error()
        until, number, gateway = _TICKET_FORMAT.unpack(ticket)
        if self._now() >= until:
            raise _build_invalid_url_error()
        return ImageTicket(f"{_PREFIX}{number.hex()}", Mac(gateway.hex()))

    def _sign_ticket(self, ticket: bytes) -> bytes:
        return hmac.digest(self._secret, ticket, "sha256")


def _encode_token(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode("ascii")


def _build_invalid_url_error() -> NotFound:
    return NotFound("the image URL is invalid or expired")
