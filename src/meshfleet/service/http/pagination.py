"""Tokens for the next page of a list: opaque, signed, and bound to the query (rest-16 to rest-19)."""

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
    """Fields that every page of a list has."""

    items: list[Item]
    next_token: str | None


_SIGNATURE_BYTES: Final = 16
"""Length of a page token's signature in bytes; forging one takes 2^128 attempts."""


class PageTokens:
    """Encodes, signs and verifies page tokens. All processes of a service share the signing secret."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    def encode(self, query: Struct | str, position: tuple[Any, ...]) -> str:
        """Return the token of the page that starts after `position` (sort key values) in a query's list."""
        encoded = msgspec.json.encode(position)
        return base64.urlsafe_b64encode(self._sign(query, encoded) + encoded).rstrip(b"=").decode("ascii")

    def decode(self, query: Struct | str, token: str) -> tuple[Any, ...]:
        """Return the position in a page token. Raise `InvalidToken` for another query or an invalid token."""
        try:
            data = base64.b64decode(token + "=" * (-len(token) % 4), altchars=b"-_", validate=True)
        except (binascii.Error, ValueError):
            raise _build_invalid_token() from None
        # Only the canonical encoding is accepted; a base64 decoder accepts more than one.
        if base64.urlsafe_b64encode(data).rstrip(b"=").decode("ascii") != token:
            raise _build_invalid_token()
        signature, encoded = data[:_SIGNATURE_BYTES], data[_SIGNATURE_BYTES:]
        if not hmac.compare_digest(signature, self._sign(query, encoded)):
            raise _build_invalid_token()
        position: list[Any] = msgspec.json.decode(encoded)
        return tuple(position)

    def decode_start(self, query: Struct | str, token: str | None, *, start: Any) -> Any:
        """Return the value after which a page starts, for lists whose position is one value.

        Without a token, return `start`, the value for the first page.
        """
        return start if token is None else self.decode(query, token)[0]

    def build_page(
        self, query: Struct | str, found: list[Item], limit: int, position: Callable[[Item], tuple[Any, ...]]
    ) -> PageFields[Item]:
        """Return the first `limit` items of `found` as a page, with a token if there is a next page.

        `found` must have one item more than `limit` if there is a next page. `position` returns the position
        of an item.
        """
        has_more = len(found) > limit
        items = found[:limit]
        return {"items": items, "next_token": self.encode(query, position(items[-1])) if has_more else None}

    def _sign(self, query: Struct | str, encoded: bytes) -> bytes:
        """Return the signature of an encoded position for this query."""
        scope = hashlib.sha256(msgspec.json.encode((type(query).__name__, query))).digest()
        return hmac.digest(self._secret, scope + encoded, "sha256")[:_SIGNATURE_BYTES]


def _build_invalid_token() -> InvalidToken:
    return InvalidToken("NextToken is invalid for this list and these filters")
