"""What is asked of a service, and what it answers: values, before and after the network."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from urllib.parse import urlencode

import httpx
import msgspec
from msgspec import Struct

from meshfleet.client.arguments import check_text
from meshfleet.client.rest.multipart import MultipartUpload
from meshfleet.errors.protocol import MalformedAddress

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from meshfleet import rest


# Where a service is.


class BaseUrl:
    """The address of a service, which may have a path in front of the service's own."""

    def __init__(self, url: str) -> None:
        if not url.isprintable() or " " in url:
            raise MalformedAddress("url", "has a space or a control character in it")
        try:
            self._url = httpx.URL(url)
            host = self._url.host
        except (httpx.InvalidURL, UnicodeError):  # the latter for hosts that IDNA does not allow
            raise MalformedAddress("url", "is not a URL such as https://host") from None
        if self._url.scheme not in {"http", "https"} or not host:
            raise MalformedAddress("url", "must begin with http:// or https:// and a host")
        if self._url.userinfo:
            raise MalformedAddress("url", "has a user name or password in it, which are given apart")
        if self._url.query or self._url.fragment or "?" in url or "#" in url:
            raise MalformedAddress("url", "has a ? or # in it")
        self._prefix = self._url.raw_path.decode("ascii").rstrip("/")

    def __str__(self) -> str:
        return f"{self._url.scheme}://{self._url.netloc.decode('ascii')}{self._prefix}"

    @property
    def is_secure(self) -> bool:
        """Whether TLS keeps what is said."""
        return self._url.scheme == "https"

    def join(self, path: str) -> httpx.URL:
        """A path of the service, percent-encoded already, with its query."""
        return self._url.copy_with(raw_path=(self._prefix + path).encode("ascii"))


JSON_TYPE: Final = "application/json"

QueryValue = str | int | bool | None
QueryParams = tuple[tuple[str, str], ...]


class HttpRequest(Struct, frozen=True, kw_only=True):
    """One question. It shows nothing of what it carries."""

    method: str
    path: str
    query: QueryParams = ()
    body: bytes | None = None
    upload: MultipartUpload | None = None
    """Instead of a body: what is sent piece by piece."""
    headers: tuple[tuple[str, str], ...] = ()
    accept: str = JSON_TYPE
    is_repeatable: bool = False
    """Asked twice it does no more than asked once: it reads, or has a key by which the service knows it."""
    extra_timeout: float = 0.0
    """Seconds that the service may take longer than usual."""
    secrets: tuple[str, ...] = ()
    """What it carries that no error may repeat."""

    @property
    def path_with_query(self) -> str:
        """Path and query."""
        return f"{self.path}?{urlencode(self.query)}" if self.query else self.path

    def __repr__(self) -> str:
        return f"Call({self.method} {self.path})"

    def __rich_repr__(self) -> list[tuple[str, str]]:
        return [("method", self.method), ("path", self.path)]


class HttpResponse(Struct, frozen=True, kw_only=True):
    """What came back, whatever it means. It shows nothing of it: there may be a password inside."""

    status: int
    body: bytes
    content_type: str = ""
    retry_after: int | None = None

    @property
    def is_success(self) -> bool:
        """Whether it is what was asked for."""
        return 200 <= self.status < 300  # noqa: PLR2004 # as HTTP has it

    def __repr__(self) -> str:
        return f"Answer({self.status})"

    def __rich_repr__(self) -> list[tuple[str, int]]:
        return [("status", self.status)]


def build_query(single: Mapping[str, QueryValue], repeated: Mapping[str, Iterable[str]] = {}) -> QueryParams:
    """Parameters by their names, without those that are None."""
    return (
        *(
            (name, check_text(_format_value(value), name))
            for name, value in single.items()
            if value is not None
        ),
        *((name, check_text(value, name)) for name, values in repeated.items() for value in values),
    )


def _format_value(value: str | int) -> str:  # a bool is an int
    return str(value).lower() if isinstance(value, bool) else str(value)


_SECRET_FIELDS: Final = frozenset({"password", "current", "key", "public_key"})
"""Fields of bodies that nobody else may see."""


def encode_body(body: rest.RequestBody | None) -> bytes | None:
    """A body as it is sent."""
    if body is None:
        return None
    for field in msgspec.structs.fields(body):
        if isinstance(value := getattr(body, field.name), str):
            check_text(value, field.encode_name)
    return msgspec.json.encode(body)


def find_secrets(body: rest.RequestBody | None) -> tuple[str, ...]:
    """What of a body no error may repeat."""
    held = (getattr(body, name, None) for name in _SECRET_FIELDS)
    return tuple(each for each in held if isinstance(each, str))
