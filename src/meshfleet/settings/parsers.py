"""What the texts of settings mean. What cannot be read raises `Unfit`."""

from __future__ import annotations

import re
from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_network
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from meshfleet.errors import quote_input
from meshfleet.errors.protocol import MalformedAddress, MalformedTopic
from meshfleet.mqtt.client.address import BrokerAddress
from meshfleet.protocol.topics import TopicCodec
from meshfleet.rest import BrokerPlace
from meshfleet.settings.model import ListenAddress

if TYPE_CHECKING:
    from urllib.parse import SplitResult


class InvalidSetting(Exception):
    """Why a text cannot be the value of a setting."""


# --- Addresses to listen at ---

_EXAMPLE: Final = (
    "a host and a port, such as 127.0.0.1:8080 or [::1]:8080; 0.0.0.0 and [::] are all addresses"
)
_LISTEN = re.compile(r"(\[.+\]|[^\[\]:]+):([0-9]{1,5})")
_NAME = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9._-]{0,252}[A-Za-z0-9_.])?")
_MAX_PORT: Final = 65535


def parse_listen_address(text: str) -> ListenAddress:
    """Read HOST:PORT."""
    found = _LISTEN.fullmatch(text)
    if found is None or not _is_host(host := found[1]) or (port := int(found[2])) > _MAX_PORT:
        raise InvalidSetting(f"{quote_input(text)} is not {_EXAMPLE}")
    return ListenAddress(host.strip("[]"), port)


def parse_listen_address_or_off(text: str) -> ListenAddress | None:
    """Read HOST:PORT, or `off`: nobody listens."""
    return None if text == "off" else parse_listen_address(text)


def _is_host(text: str) -> bool:
    if not text.startswith("["):
        return _NAME.fullmatch(text) is not None
    try:
        IPv6Address(text.removeprefix("[").removesuffix("]"))
    except ValueError:
        return False
    return True


# --- Files ---


def parse_path(text: str) -> Path:
    """Read a path, perhaps below somebody's home."""
    if not text or "\0" in text:
        raise InvalidSetting("is not a path")
    try:
        return Path(text).expanduser()
    except RuntimeError:
        raise InvalidSetting(f"{quote_input(text)} is in the home of a user that nobody knows") from None


def parse_readable_file(text: str) -> Path:
    """Read the path of a file that we can read."""
    path = parse_path(text)
    try:
        path.read_bytes()
    except OSError as exc:
        raise InvalidSetting(f"{path} cannot be read: {exc.strerror}") from exc
    return path


# --- Addresses for others ---


def parse_public_url(text: str) -> str:
    """Read the address of a service, and take the slash from its end."""
    url = _parse_url(text, ("http", "https"))
    return f"{url.scheme}://{url.netloc}{url.path.rstrip('/')}"


def parse_public_mqtt(text: str) -> BrokerPlace:
    """Read the address of a broker."""
    url = _parse_url(text, ("mqtt", "mqtts"))
    if url.path.strip("/"):
        raise InvalidSetting("has a path, which MQTT has not")
    tls = url.scheme == "mqtts"
    return BrokerPlace(host=url.hostname or "", port=url.port or (8883 if tls else 1883), tls=tls)


def parse_broker(text: str) -> BrokerAddress | None:
    """Read where another broker is and who we are to it, or `embedded`: there is no other."""
    if text == "embedded":
        return None
    try:
        address = BrokerAddress.parse(text)
    except MalformedAddress as exc:
        raise InvalidSetting(
            f"is neither embedded nor another broker: {exc.reason}"
        ) from None  # it may hold a password
    if address.path is not None:
        raise InvalidSetting("must begin with mqtt:// or mqtts://: gateways speak no WebSockets")
    return address


def _parse_url(text: str, schemes: tuple[str, str]) -> SplitResult:
    """Take an address apart. It is never repeated: there may be a password in it, although there must not."""
    try:
        url = urlsplit(text)
        port = url.port
    except ValueError:
        raise InvalidSetting(f"is not a URL such as {schemes[0]}://host:port") from None
    if url.scheme not in schemes:
        raise InvalidSetting(f"must begin with {schemes[0]}:// or {schemes[1]}://")
    if not text.isprintable() or " " in text or "?" in text or "#" in text or "@" in text:
        raise InvalidSetting("must be an address alone: no user, no query, no spaces")
    if port == 0 or not _is_host(re.sub(r":[0-9]*$", "", url.netloc)):
        raise InvalidSetting("names no host, or one that cannot be")
    return url


# --- Databases, proxies, topics ---

_POSTGRESQL = re.compile(
    r"postgres(?:ql)?://(?P<rest>(?:[^@\s]*@)?(?:\[[0-9A-Fa-f:.]+\]|[^\[\]@:/?\s]*)(?::[0-9]{1,5})?(?:[/?]\S*)?)"
)


def parse_database(text: str) -> str:
    """Read which database; what is wrong is never repeated, because of the password."""
    if text == "sqlite":
        return text
    found = _POSTGRESQL.fullmatch(text)
    if found is None:
        raise InvalidSetting("is neither sqlite nor a URL such as postgresql://user:password@host:5432/name")
    return f"postgresql://{found['rest']}"


def parse_networks(text: str) -> tuple[IPv4Network | IPv6Network, ...]:
    """Read addresses and networks with commas between them."""
    return tuple(_parse_network(part) for each in text.split(",") if (part := each.strip()))


def _parse_network(text: str) -> IPv4Network | IPv6Network:
    try:
        return ip_network(text)
    except ValueError:
        raise InvalidSetting(
            f"{quote_input(text)} is not an IP address or a network such as 10.0.0.0/8"
        ) from None


def parse_topic_prefix(text: str) -> str:
    """Read what may stand in front of topics; nothing may."""
    try:
        TopicCodec(text)
    except MalformedTopic as exc:
        raise InvalidSetting(exc.reason) from exc
    return text


# --- Switches and numbers ---


def parse_switch(text: str) -> bool:
    """Read on or off."""
    if text not in {"on", "off"}:
        raise InvalidSetting(f"{quote_input(text)} is neither on nor off")
    return text == "on"


MAX_NUMBER: Final = 10**12
"""The largest number that anything is set to: nobody means more, and no sum of them overflows."""

_WHOLE = re.compile(r"[0-9]{1,13}")
_SECONDS = re.compile(r"[0-9]{1,12}(\.[0-9]{1,9})?")


def parse_integer(text: str, *, least: int, most: int) -> int:
    """Read a whole number within bounds."""
    if not _WHOLE.fullmatch(text) or not least <= int(text) <= most:
        raise InvalidSetting(f"{quote_input(text)} is not a whole number from {least} to {most}")
    return int(text)


_MIN_RETENTION_SECONDS: Final = 3600
"""Seconds: what is kept is kept in pieces of a day, and looked at about once an hour."""


def parse_retention(text: str) -> int | None:
    """Read how many seconds something is kept, or `forever`."""
    return None if text == "forever" else parse_integer(text, least=_MIN_RETENTION_SECONDS, most=MAX_NUMBER)


def parse_seconds(text: str) -> float:
    """Read a duration, which is in seconds and perhaps parts of one (rest-166)."""
    if not _SECONDS.fullmatch(text) or not float(text):
        raise InvalidSetting(f"{quote_input(text)} is not a positive number of seconds, such as 60 or 0.5")
    return float(text)
