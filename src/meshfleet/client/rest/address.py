"""Where a service is."""

from __future__ import annotations

import httpx

from meshfleet.errors import MalformedAddress


class Base:
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

    def at(self, path: str) -> httpx.URL:
        """A path of the service, percent-encoded already, with its query."""
        return self._url.copy_with(raw_path=(self._prefix + path).encode("ascii"))
