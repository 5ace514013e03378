"""Address of an MQTT broker, with the credentials of the client."""

from __future__ import annotations

from typing import Final
from urllib.parse import SplitResult, unquote, urlsplit

from msgspec import Struct

from meshfleet.errors.protocol import MalformedAddress

_PORTS: Final = {"mqtt": 1883, "mqtts": 8883, "ws": 80, "wss": 443}
_DEFAULT_PATH: Final = "/mqtt"


class BrokerAddress(Struct, frozen=True, kw_only=True):
    """Address of an MQTT broker with credentials, which `str` and `repr` omit."""

    host: str
    port: int
    tls: bool = False
    path: str | None = None
    """URL path of MQTT over WebSocket; None for MQTT over TCP or TLS."""
    user: str | None = None
    password: str | None = None

    @classmethod
    def parse(cls, url: str) -> BrokerAddress:
        """Parse `SCHEME://[user[:password]@]host[:port]`; SCHEME is mqtt, mqtts, ws or wss.

        After ws and wss a path may follow. Reserved URL characters in user and password are percent-encoded.
        Raise `MalformedAddress` if the URL is invalid.
        """
        try:
            parts = urlsplit(_require_printable(url))
            port = parts.port
            user, password = (
                unquote(text or "", errors="strict") for text in (parts.username, parts.password)
            )
        except ValueError:
            raise MalformedAddress("broker", "is not a URL such as mqtt://host:1883") from None
        if parts.scheme not in _PORTS:
            raise MalformedAddress("broker", "must begin with mqtt://, mqtts://, ws:// or wss://")
        host = _parse_host(parts)
        _check_unused_parts(parts)
        return cls(
            host=host,
            port=_PORTS[parts.scheme] if port is None else port,
            tls=parts.scheme in {"mqtts", "wss"},
            path=(parts.path or _DEFAULT_PATH) if parts.scheme in {"ws", "wss"} else None,
            user=None if parts.username is None else user,
            password=None if parts.password is None else password,
        )

    def __str__(self) -> str:
        scheme = ("mqtt", "mqtts") if self.path is None else ("ws", "wss")
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{scheme[self.tls]}://{host}:{self.port}{self.path or ''}"

    def __repr__(self) -> str:
        return f"BrokerAddress({str(self)!r})"

    def __rich_repr__(self) -> list[tuple[str, object]]:
        return [("url", str(self))]


def _require_printable(url: str) -> str:
    """Return the URL. Raise `MalformedAddress` if it has characters that urlsplit would silently remove."""
    if not url.isprintable() or " " in url:
        raise MalformedAddress("broker", "has a space or a control character in it")
    return url


def _parse_host(parts: SplitResult) -> str:
    host = parts.hostname
    if not host:
        raise MalformedAddress("broker", "names no host")
    try:
        host.encode("idna")
    except UnicodeError:
        raise MalformedAddress("broker", "names an invalid host") from None
    return host


def _check_unused_parts(parts: SplitResult) -> None:
    """Raise `MalformedAddress` if parts of a URL would be ignored: they may belong to a password."""
    if parts.query or parts.fragment:
        raise MalformedAddress("broker", "has a ? or #, which must be written as %3F or %23")
    if "@" in parts.path:
        raise MalformedAddress("broker", "has an @ after a /, which must be written as %2F in a password")
    if parts.scheme in {"mqtt", "mqtts"} and parts.path not in {"", "/"}:
        raise MalformedAddress("broker", "has a path, which only ws:// and wss:// have")
    if parts.port == 0:
        raise MalformedAddress("broker", "has port 0")
    if parts.password is not None and not parts.username:
        raise MalformedAddress("broker", "has a password without a user name")
