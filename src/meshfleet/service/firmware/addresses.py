"""Signed addresses, with which a gateway gets an image without any other credentials (firmware-20).

An address holds for a while, for one record, and tells for which gateway it was made. Nothing is remembered
of it: what it says, and that we said so, is in it.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import struct
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import quote

from meshfleet.errors import NotFound
from meshfleet.wire.ids import Mac
from meshfleet.wire.rest import IMAGES

if TYPE_CHECKING:
    from meshfleet.service.clock import Now
    from meshfleet.wire.rest import Firmware

LASTING: Final = 15 * 60 * 1000
"""Milliseconds."""

_TICKET: Final = struct.Struct(">Q8s6s")
_SIGNATURE: Final = 32
_PREFIX: Final = "fw-"


class Ticket(NamedTuple):
    """What an address tells."""

    firmware: str
    gateway: Mac


class Addresses:
    """Writes and reads them. Every process of a service has the same secret, so any can."""

    def __init__(self, secret: bytes, url: str, now: Now) -> None:
        """`url`: how gateways reach the service."""
        self._secret = secret
        self._url = url
        self._now = now

    def write(self, firmware: Firmware, gateway: Mac) -> str:
        """The address of an image for a gateway."""
        number = bytes.fromhex(firmware.id.removeprefix(_PREFIX))
        ticket = _TICKET.pack(self._now() + LASTING, number, bytes.fromhex(gateway))
        token = _text(ticket + self._sign(ticket))
        return f"{self._url}{IMAGES}/{token}/{quote(firmware.file_name, safe='')}"

    def read(self, token: str) -> Ticket:
        """What a token tells; one that is not ours, or too old, leads nowhere."""
        try:
            data = base64.b64decode(token + "=" * (-len(token) % 4), altchars=b"-_", validate=True)
        except (binascii.Error, ValueError):
            raise _nowhere() from None
        if len(data) != _TICKET.size + _SIGNATURE or _text(data) != token:  # one spelling only
            raise _nowhere()
        ticket, signature = data[: _TICKET.size], data[_TICKET.size :]
        if not hmac.compare_digest(signature, self._sign(ticket)):
            raise _nowhere()
        until, number, gateway = _TICKET.unpack(ticket)
        if self._now() >= until:
            raise _nowhere()
        return Ticket(f"{_PREFIX}{number.hex()}", Mac(gateway.hex()))

    def _sign(self, ticket: bytes) -> bytes:
        return hmac.digest(self._secret, ticket, "sha256")


def _text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode("ascii")


def _nowhere() -> NotFound:
    return NotFound("there is nothing here, or no longer")
