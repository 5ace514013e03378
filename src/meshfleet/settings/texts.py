"""What the texts of settings mean. What cannot be read raises `Unfit`."""

from __future__ import annotations

import re
from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_network
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from meshfleet.errors import MalformedAddress, MalformedTopic, shown
from meshfleet.link.address import Address
from meshfleet.settings.model import Listen
from meshfleet.wire.rest import BrokerPlace
from meshfleet.wire.topics import Topics

if TYPE_CHECKING:
    from urllib.parse import SplitResult


class Unfit(Exception):
    """Why a text cannot be the value of a setting."""


# --- Addresses to listen at ---

_EXAMPLE: Final = (
    "a host and a port, such as 127.0.0.1:8080 or [::1]:8080; 0.0.0.0 and [::] are all addresses"
)
_LISTEN = re.compile(r"(\[.+\]|[^\[\]:]+):([0-9]{1,5})")
_NAME = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9._-]{0,252}[A-Za-z0-9_.])?")
_MAX_PORT: Final = 65535


def read_listen(text: str) -> Listen:
    """Read HOST:PORT."""
    found = _LISTEN.fullmatch(text)
    if found is None or not _is_host(host := found[1]) or (port := int(found[2])) > _MAX_PORT:
        raise Unfit(f"{shown(text)} is not {_EXAMPLE}")
    return Listen(host.strip("[]"), port)


def read_listen_or_off(text: str) -> Listen | None:
    """Read HOST:PORT, or `off`: nobody listens."""
    return None if text == "off" else read_listen(text)


def _is_host(text: str) -> bool:
    if not text.startswith("["):
        return _NAME.fullmatch(text) is not None
    try:
        IPv6Address(text.removeprefix("[").removesuffix("]"))
    except ValueError:
        return False
    return True


# --- Files ---


def read_path(text: str) -> Path:
    """Read a path, perhaps below somebody's home."""
    if not text or "\0" in text:
        raise Unfit("is not a path")
    try:
        return Path(text).expanduser()
    except RuntimeError:
        raise Unfit(f"{shown(text)} is in the home of a user that nobody knows") from None


def read_readable(text: str) -> Path:
    """Read the path of a file that we can read."""
    path = read_path(text)
    try:
        path.read_bytes()
    except OSError as exc:
        raise Unfit(f"{path} cannot be read: {exc.strerror}") from exc
    return path


# --- Addresses for others ---


def read_public_url(text: str) -> str:
    """Read the address of a service, and take the slash from its end."""
    url = _url(text, ("http", "https"))
    return f"{url.scheme}://{url.netloc}{url.path.rstrip('/')}"


def read_public_mqtt(text: str) -> BrokerPlace:
    """Read the address of a broker."""
    url = _url(text, ("mqtt", "mqtts"))
    if url.path.strip("/"):
        raise Unfit("has a path, which MQTT has not")
    tls = url.scheme == "mqtts"
    return BrokerPlace(host=url.hostname or "", port=url.port or (8883 if tls else 1883), tls=tls)


def read_broker(text: str) -> Address | None:
    """Read where another broker is and who we are to it, or `embedded`: there is no other."""
    if text == "embedded":
        return None
    try:
        address = Address.parse(text)
    except MalformedAddress as exc:
        raise Unfit(
            f"is neither embedded nor another broker: {exc.reason}"
        ) from None  # it may hold a password
    if address.path is not None:
        raise Unfit("must begin with mqtt:// or mqtts://: gateways speak no WebSockets")
    return address


def _url(text: str, schemes: tuple[str, str]) -> SplitResult:
    """Take an address apart. It is never repeated: there may be a password in it, although there must not."""
    try:
        url = urlsplit(text)
        port = url.port
    except ValueError:
        raise Unfit(f"is not a URL such as {schemes[0]}://host:port") from None
    if url.scheme not in schemes:
        raise Unfit(f"must begin with {schemes[0]}:// or {schemes[1]}://")
    if not text.isprintable() or " " in text or "?" in text or "#" in text or "@" in text:
        raise Unfit("must be an address alone: no user, no query, no spaces")
    if port == 0 or not _is_host(re.sub(r":[0-9]*$", "", url.netloc)):
        raise Unfit("names no host, or one that cannot be")
    return url


# --- Databases, proxies, topics ---

_POSTGRESQL = re.compile(
    r"postgres(?:ql)?://(?P<rest>(?:[^@\s]*@)?(?:\[[0-9A-Fa-f:.]+\]|[^\[\]@:/?\s]*)(?::[0-9]{1,5})?(?:[/?]\S*)?)"
)


def read_database(text: str) -> str:
    """Read which database; what is wrong is never repeated, because of the password."""
    if text == "sqlite":
        return text
    found = _POSTGRESQL.fullmatch(text)
    if found is None:
        raise Unfit("is neither sqlite nor a URL such as postgresql://user:password@host:5432/name")
    return f"postgresql://{found['rest']}"


def read_networks(text: str) -> tuple[IPv4Network | IPv6Network, ...]:
    """Read addresses and networks with commas between them."""
    return tuple(_network(part) for each in text.split(",") if (part := each.strip()))


def _network(text: str) -> IPv4Network | IPv6Network:
    try:
        return ip_network(text)
    except ValueError:
        raise Unfit(f"{shown(text)} is not an IP address or a network such as 10.0.0.0/8") from None


def read_topic_prefix(text: str) -> str:
    """Read what may stand in front of topics; nothing may."""
    try:
        Topics(text)
    except MalformedTopic as exc:
        raise Unfit(exc.reason) from exc
    return text


# --- Switches and numbers ---


def read_switch(text: str) -> bool:
    """Read on or off."""
    if text not in {"on", "off"}:
        raise Unfit(f"{shown(text)} is neither on nor off")
    return text == "on"


MOST: Final = 10**12
"""The largest number that anything is set to: nobody means more, and no sum of them overflows."""

_WHOLE = re.compile(r"[0-9]{1,13}")
_SECONDS = re.compile(r"[0-9]{1,12}(\.[0-9]{1,9})?")


def read_whole(text: str, *, least: int, most: int) -> int:
    """Read a whole number within bounds."""
    if not _WHOLE.fullmatch(text) or not least <= int(text) <= most:
        raise Unfit(f"{shown(text)} is not a whole number from {least} to {most}")
    return int(text)


_SHORTEST: Final = 3600
"""Seconds: what is kept is kept in pieces of a day, and looked at about once an hour."""


def read_retention(text: str) -> int | None:
    """Read how many seconds something is kept, or `forever`."""
    return None if text == "forever" else read_whole(text, least=_SHORTEST, most=MOST)


def read_seconds(text: str) -> float:
    """Read a duration, which is in seconds and perhaps parts of one (rest-166)."""
    if not _SECONDS.fullmatch(text) or not float(text):
        raise Unfit(f"{shown(text)} is not a positive number of seconds, such as 60 or 0.5")
    return float(text)
