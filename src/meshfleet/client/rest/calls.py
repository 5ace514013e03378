"""What is asked of a service, and what it answers: values, before and after the network."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from urllib.parse import urlencode

import msgspec
from msgspec import Struct

from meshfleet.client.names import text_of
from meshfleet.client.rest.uploads import Upload

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from meshfleet.wire import rest

JSON: Final = "application/json"

Value = str | int | bool | None
Query = tuple[tuple[str, str], ...]


class Call(Struct, frozen=True, kw_only=True):
    """One question. It shows nothing of what it carries."""

    method: str
    path: str
    query: Query = ()
    body: bytes | None = None
    upload: Upload | None = None
    """Instead of a body: what is sent piece by piece."""
    headers: tuple[tuple[str, str], ...] = ()
    accept: str = JSON
    is_repeatable: bool = False
    """Asked twice it does no more than asked once: it reads, or has a key by which the service knows it."""
    patience: float = 0.0
    """Seconds that the service may take longer than usual."""
    secrets: tuple[str, ...] = ()
    """What it carries that no error may repeat."""

    @property
    def target(self) -> str:
        """Path and query."""
        return f"{self.path}?{urlencode(self.query)}" if self.query else self.path

    def __repr__(self) -> str:
        return f"Call({self.method} {self.path})"

    def __rich_repr__(self) -> list[tuple[str, str]]:
        return [("method", self.method), ("path", self.path)]


class Answer(Struct, frozen=True, kw_only=True):
    """What came back, whatever it means. It shows nothing of it: there may be a password inside."""

    status: int
    body: bytes
    content_type: str = ""
    retry_after: int | None = None

    @property
    def is_good(self) -> bool:
        """Whether it is what was asked for."""
        return 200 <= self.status < 300  # noqa: PLR2004 # as HTTP has it

    def __repr__(self) -> str:
        return f"Answer({self.status})"

    def __rich_repr__(self) -> list[tuple[str, int]]:
        return [("status", self.status)]


def query(single: Mapping[str, Value], repeated: Mapping[str, Iterable[str]] = {}) -> Query:
    """Parameters by their names, without those that are None."""
    return (
        *((name, text_of(_spelt(value), name)) for name, value in single.items() if value is not None),
        *((name, text_of(value, name)) for name, values in repeated.items() for value in values),
    )


def _spelt(value: str | int) -> str:  # a bool is an int
    return str(value).lower() if isinstance(value, bool) else str(value)


_SECRET: Final = frozenset({"password", "current", "key", "public_key"})
"""Fields of bodies that nobody else may see."""


def written(ask: rest.Ask | None) -> bytes | None:
    """A body as it is sent."""
    if ask is None:
        return None
    for field in msgspec.structs.fields(ask):
        if isinstance(value := getattr(ask, field.name), str):
            text_of(value, field.encode_name)
    return msgspec.json.encode(ask)


def secrets_in(ask: rest.Ask | None) -> tuple[str, ...]:
    """What of a body no error may repeat."""
    held = (getattr(ask, name, None) for name in _SECRET)
    return tuple(each for each in held if isinstance(each, str))
