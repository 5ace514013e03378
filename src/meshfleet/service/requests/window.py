"""Where requests are handed in over REST, whether or not there is anybody to carry them."""

from __future__ import annotations

import hashlib
import hmac
import re
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec import UNSET
from msgspec.structs import asdict

from meshfleet.errors import (
    BrokerUnavailable,
    DatabaseUnavailable,
    Fault,
    Interrupted,
    InvalidRequest,
    Unanswered,
)
from meshfleet.errors.root import Told
from meshfleet.errors.told import error_of
from meshfleet.service.requests.once import Key
from meshfleet.wire.rest import RequestState

if TYPE_CHECKING:
    from msgspec import Struct

    from meshfleet.service.accounts.model import Actor
    from meshfleet.service.requests.dispatch import Dispatch
    from meshfleet.wire.rest import RequestAnswer, RequestRecord

_KEY: Final = re.compile(r"[\x21-\x7e]{1,255}")


class Window:
    """Shut until somebody carries requests."""

    def __init__(self, secret: bytes) -> None:
        """`secret` keeps what is remembered of requests from telling what was in them."""
        self._secret = secret
        self._dispatch: Dispatch | None = None

    def open(self, dispatch: Dispatch) -> None:
        """From now on requests are carried."""
        self._dispatch = dispatch

    @property
    def dispatch(self) -> Dispatch:
        """Who carries them."""
        if self._dispatch is None:
            raise BrokerUnavailable("no broker is connected that could carry requests")
        return self._dispatch

    async def settle(self) -> None:
        """Let the history be complete before it is read."""
        if self._dispatch is not None:
            with suppress(DatabaseUnavailable):  # what is there can be read all the same
                await self._dispatch.settle()

    def key(self, given: str | None, by: Actor, place: str, asked: Struct) -> Key | None:
        """An idempotency key as it is remembered: it is each actor's own (rest-25).

        `place` is where something is asked for: a device, or a path.
        """
        if given is None:
            return None
        if not _KEY.fullmatch(given):
            raise InvalidRequest([Fault("Idempotency-Key", "is not 1 to 255 characters of ASCII, no spaces")])
        # All fields, so that one that is left out is the same as one that says what holds anyway.
        body = {name: each for name, each in asdict(asked).items() if each is not UNSET}
        return Key(self._hash(by.title, given), self._hash(place, msgspec.json.encode(body).decode()))

    def _hash(self, *parts: str) -> str:
        # Each with its length, so that no two are the same when put together.
        text = "".join(f"{len(part)}:{part}" for part in parts)
        return hmac.new(self._secret, text.encode(), hashlib.sha256).hexdigest()


def answer_in(record: RequestRecord) -> RequestAnswer:
    """The answer to a request that is over, or the error that it ended with."""
    if record.state is RequestState.DONE and record.response is not None:
        return record.response
    if record.problem is None:
        raise Interrupted("nobody knows what became of it")
    raise error_of(record.problem.code, Unanswered.http, Told(record.problem.detail))
