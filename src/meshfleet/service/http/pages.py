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


class Cut(TypedDict, Generic[Item]):
    """The fields of a page."""

    items: list[Item]
    next_token: str | None


_SIGNATURE: Final = 16
"""Bytes; forging one of these takes 2^128 tries."""


class Pages:
    """Writes and reads tokens. Every process of a service has the same secret, so any can go on."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    def write(self, asked: Struct | str, position: tuple[Any, ...]) -> str:
        """The token for what comes behind a position in a list."""
        where = msgspec.json.encode(position)
        return base64.urlsafe_b64encode(self._sign(asked, where) + where).rstrip(b"=").decode("ascii")

    def read(self, asked: Struct | str, token: str) -> tuple[Any, ...]:
        """The position in a list that was asked for in the same way, or InvalidToken."""
        try:
            data = base64.b64decode(token + "=" * (-len(token) % 4), altchars=b"-_", validate=True)
        except (binascii.Error, ValueError):
            raise _invalid() from None
        # A token has one spelling only; base64 is not so strict.
        if base64.urlsafe_b64encode(data).rstrip(b"=").decode("ascii") != token:
            raise _invalid()
        signature, where = data[:_SIGNATURE], data[_SIGNATURE:]
        if not hmac.compare_digest(signature, self._sign(asked, where)):
            raise _invalid()
        position: list[Any] = msgspec.json.decode(where)
        return tuple(position)

    def after(self, asked: Struct | str, token: str | None, *, start: Any) -> Any:
        """The one value behind which a list goes on; `start` on the first page."""
        return start if token is None else self.read(asked, token)[0]

    def cut(
        self, asked: Struct | str, found: list[Item], limit: int, position: Callable[[Item], tuple[Any, ...]]
    ) -> Cut[Item]:
        """A page of what was found, which is one more than fits when there is a next page."""
        more = len(found) > limit
        items = found[:limit]
        return {"items": items, "next_token": self.write(asked, position(items[-1])) if more else None}

    def _sign(self, asked: Struct | str, where: bytes) -> bytes:
        scope = hashlib.sha256(msgspec.json.encode((type(asked).__name__, asked))).digest()
        return hmac.digest(self._secret, scope + where, "sha256")[:_SIGNATURE]


def _invalid() -> InvalidToken:
    return InvalidToken("NextToken is not a token of this list with these filters")
