"""Tokens for the next page: opaque, signed, and bound to what was asked for (rest-16 to rest-19)."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from typing import TYPE_CHECKING, Any, Final, Generic, TypedDict, TypeVar

import msgspec

from meshfleet.errors import InvalidToken

if TYPE_CHECKING:
    from collections.abc import Callable

    from msgspec import Struct

Item = TypeVar("Item")


class PageFields(TypedDict, Generic[Item]):
    """The fields of a page."""

    items: list[Item]
    next_token: str | None


_SIGNATURE_BYTES: Final = 16
"""Bytes; forging one of these takes 2^128 tries."""


class PageTokens:
    """Writes and reads tokens. Every process of a service has the same secret, so any can go on."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    def encode(self, query: Struct | str, position: tuple[Any, ...]) -> str:
        """The token for what comes behind a position in a list."""
        where = msgspec.json.encode(position)
        return base64.urlsafe_b64encode(self._sign(query, where) + where).rstrip(b"=").decode("ascii")

    def decode(self, query: Struct | str, token: str) -> tuple[Any, ...]:
        """The position in a list that was asked for in the same way, or InvalidToken."""
        try:
            data = base64.b64decode(token + "=" * (-len(token) % 4), altchars=b"-_", validate=True)
        except (binascii.Error, ValueError):
            raise _invalid_token() from None
        # A token has one spelling only; base64 is not so strict.
        if base64.urlsafe_b64encode(data).rstrip(b"=").decode("ascii") != token:
            raise _invalid_token()
        signature, where = data[:_SIGNATURE_BYTES], data[_SIGNATURE_BYTES:]
        if not hmac.compare_digest(signature, self._sign(query, where)):
            raise _invalid_token()
        position: list[Any] = msgspec.json.decode(where)
        return tuple(position)

    def decode_start(self, query: Struct | str, token: str | None, *, start: Any) -> Any:
        """The one value behind which a list goes on; `start` on the first page."""
        return start if token is None else self.decode(query, token)[0]

    def build_page(
        self, query: Struct | str, found: list[Item], limit: int, position: Callable[[Item], tuple[Any, ...]]
    ) -> PageFields[Item]:
        """A page of what was found, which is one more than fits when there is a next page."""
        more = len(found) > limit
        items = found[:limit]
        return {"items": items, "next_token": self.encode(query, position(items[-1])) if more else None}

    def _sign(self, query: Struct | str, where: bytes) -> bytes:
        scope = hashlib.sha256(msgspec.json.encode((type(query).__name__, query))).digest()
        return hmac.digest(self._secret, scope + where, "sha256")[:_SIGNATURE_BYTES]


def _invalid_token() -> InvalidToken:
    return InvalidToken("NextToken is not a token of this list with these filters")
