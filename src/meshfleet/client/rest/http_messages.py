"""HTTP requests and responses of the SDK as data structures, without I/O."""

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

    from meshfleet.rest.bodies import RequestBody


# Address of a service.


class BaseUrl:
    """Base URL of a service. A path in the URL is put in front of all REST paths."""

    def __init__(self, url: str) -> None:
        if not url.isprintable() or " " in url:
            raise MalformedAddress("url", "must not contain spaces or control characters")
        try:
            self._url = httpx.URL(url)
            host = self._url.host
        except (httpx.InvalidURL, UnicodeError):  # the latter for hosts that IDNA does not allow
            raise MalformedAddress("url", "is not a URL such as https://host") from None
        if self._url.scheme not in {"http", "https"} or not host:
            raise MalformedAddress("url", "must begin with http:// or https:// and a host")
        if self._url.userinfo:
            raise MalformedAddress("url", "must not contain a user name or password; pass them as arguments")
        if self._url.query or self._url.fragment or "?" in url or "#" in url:
            raise MalformedAddress("url", "must not contain ? or #")
        self._prefix = self._url.raw_path.decode("ascii").rstrip("/")

    def __str__(self) -> str:
        return f"{self._url.scheme}://{self._url.netloc.decode('ascii')}{self._prefix}"

    @property
    def is_secure(self) -> bool:
        """Whether connections to the service use TLS."""
        return self._url.scheme == "https"

    def join(self, path: str) -> httpx.URL:
        """Return the full URL for a REST path with its query; `path` must be percent-encoded."""
        return self._url.copy_with(raw_path=(self._prefix + path).encode("ascii"))


JSON_TYPE: Final = "application/json"

QueryValue = str | int | bool | None
QueryParams = tuple[tuple[str, str], ...]


class HttpRequest(Struct, frozen=True, kw_only=True):
    """HTTP request to the service. `repr()` omits the body and the headers, which may contain secrets."""

    method: str
    path: str
    query: QueryParams = ()
    body: bytes | None = None
    upload: MultipartUpload | None = None
    """File to upload, sent instead of `body`."""
    headers: tuple[tuple[str, str], ...] = ()
    accept: str = JSON_TYPE
    is_repeatable: bool = False
    """Whether the request may be sent twice: it only reads, or it has an idempotency key."""
    extra_timeout: float = 0.0
    """Seconds that are added to the timeout of the client for this request."""
    secrets: tuple[str, ...] = ()
    """Secrets in the body, which must not appear in error messages."""

    @property
    def path_with_query(self) -> str:
        """Path with the percent-encoded query."""
        return f"{self.path}?{urlencode(self.query)}" if self.query else self.path

    def __repr__(self) -> str:
        return f"HttpRequest({self.method} {self.path})"

    def __rich_repr__(self) -> list[tuple[str, str]]:
        return [("method", self.method), ("path", self.path)]


class HttpResponse(Struct, frozen=True, kw_only=True):
    """HTTP response of the service, with any status. `repr()` omits the body, which may contain secrets."""

    status: int
    body: bytes
    content_type: str = ""
    retry_after: int | None = None

    @property
    def is_success(self) -> bool:
        """Whether the HTTP status is 2xx."""
        return 200 <= self.status < 300  # noqa: PLR2004 # the range of HTTP

    def __repr__(self) -> str:
        return f"HttpResponse({self.status})"

    def __rich_repr__(self) -> list[tuple[str, int]]:
        return [("status", self.status)]


def build_query(single: Mapping[str, QueryValue], repeated: Mapping[str, Iterable[str]] = {}) -> QueryParams:
    """Build the query parameters of a URL. `single` has one value per name, `repeated` several values.

    Values that are None are omitted.
    """
    return (
        *(
            (name, check_text(_format_query_value(value), name))
            for name, value in single.items()
            if value is not None
        ),
        *((name, check_text(value, name)) for name, values in repeated.items() for value in values),
    )


def _format_query_value(value: str | int) -> str:  # a bool is an int
    return str(value).lower() if isinstance(value, bool) else str(value)


_SECRET_FIELDS: Final = frozenset({"password", "current", "key", "public_key", "url", "routing_key"})
"""Names of request body fields that contain secrets."""


def encode_body(body: RequestBody | None) -> bytes | None:
    """Encode a request body as JSON. Raise `MalformedText` if a string cannot be encoded as UTF-8."""
    if body is None:
        return None
    for field in msgspec.structs.fields(body):
        if isinstance(value := getattr(body, field.name), str):
            check_text(value, field.encode_name)
    return msgspec.json.encode(body)


def find_secrets(body: RequestBody | None) -> tuple[str, ...]:
    """Return the secrets in a request body, which must not appear in error messages."""
    values = (getattr(body, name, None) for name in _SECRET_FIELDS)
    return tuple(value for value in values if isinstance(value, str))
