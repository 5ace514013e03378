"""Parsers for the values of settings. They raise `InvalidSetting` for invalid values."""

from __future__ import annotations

import re
from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_network
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qsl, urlsplit

from meshfleet.errors import quote_input
from meshfleet.errors.protocol import MalformedAddress, MalformedCatalogue, MalformedInput, MalformedTopic
from meshfleet.mqtt.client.address import BrokerAddress
from meshfleet.protocol.identifiers import BUILTIN_CATALOGUE
from meshfleet.protocol.ids import Version, parse_mac, parse_model_number
from meshfleet.protocol.topics import TopicCodec
from meshfleet.rest.gateways import BrokerEndpoint
from meshfleet.rest.inputs import parse_label, parse_name_part
from meshfleet.settings.model import EMBEDDED, ListenAddress

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from urllib.parse import SplitResult


class InvalidSetting(Exception):
    """Raised for an invalid value of a setting; its text is the reason."""


# --- Listen addresses ---

_EXAMPLE: Final = (
    "a host and a port, such as 127.0.0.1:8080 or [::1]:8080; 0.0.0.0 and [::] are all addresses"
)
_LISTEN = re.compile(r"(\[.+\]|[^\[\]:]+):([0-9]{1,5})")
_NAME = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9._-]{0,252}[A-Za-z0-9_.])?")
_MAX_PORT: Final = 65535


def parse_listen_address(text: str) -> ListenAddress:
    """Parse HOST:PORT."""
    found = _LISTEN.fullmatch(text)
    if found is None or not _is_host(host := found[1]) or (port := int(found[2])) > _MAX_PORT:
        raise InvalidSetting(f"{quote_input(text)} is not {_EXAMPLE}")
    return ListenAddress(host.strip("[]"), port)


def parse_listen_address_or_off(text: str) -> ListenAddress | None:
    """Parse HOST:PORT. Return None for `off`."""
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
    """Parse a path; `~` and `~user` are expanded."""
    if not text or "\0" in text:
        raise InvalidSetting("is not a path")
    try:
        return Path(text).expanduser()
    except RuntimeError:
        raise InvalidSetting(f"{quote_input(text)} is in the home directory of an unknown user") from None


def parse_readable_file(text: str) -> Path:
    """Parse the path of a file, and check that it can be read."""
    path = parse_path(text)
    try:
        path.read_bytes()
    except OSError as exc:
        raise InvalidSetting(f"{path} cannot be read: {exc.strerror}") from exc
    return path


# --- Public addresses ---


def parse_public_url(text: str) -> str:
    """Parse the URL of a service, and remove a trailing slash."""
    url = _parse_url(text, ("http", "https"))
    return f"{url.scheme}://{url.netloc}{url.path.rstrip('/')}"


def parse_public_mqtt(text: str) -> BrokerEndpoint:
    """Parse the URL at which gateways reach the broker. Default ports: 1883, with TLS 8883."""
    url = _parse_url(text, ("mqtt", "mqtts"))
    if url.path.strip("/"):
        raise InvalidSetting("must not have a path")
    tls = url.scheme == "mqtts"
    return BrokerEndpoint(host=url.hostname or "", port=url.port or (8883 if tls else 1883), tls=tls)


def parse_broker(text: str) -> BrokerAddress | None:
    """Parse the URL of an external broker, with user and password of the service.

    Return None for `embedded`.
    """
    if text == EMBEDDED:
        return None
    try:
        address = BrokerAddress.parse(text)
    except MalformedAddress as exc:
        raise InvalidSetting(
            f"is neither embedded nor the URL of a broker: {exc.reason}"
        ) from None  # the cause may contain a password
    if address.path is not None:
        raise InvalidSetting("must begin with mqtt:// or mqtts://: gateways do not support WebSocket")
    return address


def parse_integration_broker(text: str) -> BrokerAddress | str | None:
    """Parse the URL of the broker of an integration, or `embedded`. Return None for `off`."""
    if text in {"off", EMBEDDED}:
        return None if text == "off" else EMBEDDED
    try:
        return BrokerAddress.parse(text)
    except MalformedAddress as exc:
        reason = f"is neither off, embedded nor the URL of a broker: {exc.reason}"
        raise InvalidSetting(reason) from None  # the cause may contain a password


def _parse_url(text: str, schemes: tuple[str, str]) -> SplitResult:
    """Parse a URL, and reject one with a user or password. Errors never quote the URL: it may be secret."""
    try:
        url = urlsplit(text)
        port = url.port
    except ValueError:
        raise InvalidSetting(f"is not a URL such as {schemes[0]}://host:port") from None
    if url.scheme not in schemes:
        raise InvalidSetting(f"must begin with {schemes[0]}:// or {schemes[1]}://")
    if not text.isprintable() or " " in text or "?" in text or "#" in text or "@" in text:
        raise InvalidSetting("must be an address only: no user, no query, no spaces")
    if port == 0 or not _is_host(re.sub(r":[0-9]*$", "", url.netloc)):
        raise InvalidSetting("has no host, or an invalid one")
    return url


# --- Databases, proxies, topics ---

_POSTGRESQL = re.compile(
    r"postgres(?:ql)?://(?P<rest>(?:[^@\s]*@)?(?:\[[0-9A-Fa-f:.]+\]|[^\[\]@:/?\s]*)(?::[0-9]{1,5})?(?:[/?]\S*)?)"
)


def parse_database(text: str) -> str:
    """Parse `sqlite` or the URL of a PostgreSQL database. Errors never quote the URL and its password."""
    if text == "sqlite":
        return text
    found = _POSTGRESQL.fullmatch(text)
    if found is None:
        raise InvalidSetting("is neither sqlite nor a URL such as postgresql://user:password@host:5432/name")
    return f"postgresql://{found['rest']}"


def parse_networks(text: str) -> tuple[IPv4Network | IPv6Network, ...]:
    """Parse a comma-separated list of IP addresses and networks."""
    return tuple(_parse_network(part) for each in text.split(",") if (part := each.strip()))


def _parse_network(text: str) -> IPv4Network | IPv6Network:
    try:
        return ip_network(text)
    except ValueError:
        raise InvalidSetting(
            f"{quote_input(text)} is not an IP address or a network such as 10.0.0.0/8"
        ) from None


def parse_topic_prefix(text: str) -> str:
    """Parse a topic prefix, which may be empty."""
    try:
        TopicCodec(text)
    except MalformedTopic as exc:
        raise InvalidSetting(exc.reason) from exc
    return text


_TOPIC_LEVELS = re.compile(r"[A-Za-z0-9_-]+(/[A-Za-z0-9_-]+)*")
_MAX_TOPIC_LENGTH: Final = 100


def parse_topic_levels(text: str) -> str:
    """Parse one or more topic levels of letters, digits, hyphens and underscores."""
    if not _TOPIC_LEVELS.fullmatch(text) or len(text) > _MAX_TOPIC_LENGTH:
        raise InvalidSetting(
            f"{quote_input(text)} is not a topic of letters, digits, - and _ (levels separated by /)"
        )
    return text


# --- Filters of devices, identifier tables ---

_FILTER_PARSERS: Final[Mapping[str, Callable[[str], object]]] = {
    "label": parse_label,
    "model": parse_model_number,
    "firmware": Version.parse,
    "hardware": Version.parse,
    "name": parse_name_part,
    "gateway": parse_mac,
}
"""Parsers of the values that a filter of devices may have, by name."""


def parse_device_filter(text: str) -> tuple[tuple[str, str], ...]:
    """Parse a filter of devices in the form of a URL query, such as `label=Home&model=0018`."""
    try:
        pairs = parse_qsl(text, keep_blank_values=True, strict_parsing=True, errors="strict") if text else []
    except ValueError:
        raise InvalidSetting(f"{quote_input(text)} is not a filter such as label=Home&model=0018") from None
    for name, value in pairs:
        if name not in _FILTER_PARSERS:
            raise InvalidSetting(f"{quote_input(name)} is not one of {', '.join(_FILTER_PARSERS)}")
        if name != "label" and [each for each, _ in pairs].count(name) > 1:
            raise InvalidSetting(f"{name} is given twice")
        try:
            _FILTER_PARSERS[name](value)
        except MalformedInput as exc:
            raise InvalidSetting(f"{name}: {exc.reason}") from exc
    return tuple(pairs)


# --- InfluxDB ---


def parse_secret_text(text: str) -> str:
    """Parse a token, or the name or password of a login. Errors never quote it."""
    if not text.isascii() or not text.isprintable():
        raise InvalidSetting("must consist of printable ASCII characters")
    return text


def parse_label_prefix(text: str) -> str:
    """Parse the beginning of a label, which may be empty."""
    if len(text) > _MAX_TOPIC_LENGTH or not text.isprintable():
        raise InvalidSetting("must be a short printable text")
    return text


def parse_table_file(text: str) -> Path:
    """Parse the path of an identifier table, and check the table."""
    path = parse_readable_file(text)
    try:
        BUILTIN_CATALOGUE.extended(path.read_text("utf-8-sig"), str(path))
    except UnicodeDecodeError:
        raise InvalidSetting(f"{path} is not UTF-8 text") from None
    except MalformedCatalogue as exc:
        raise InvalidSetting("; ".join(str(exc).splitlines())) from exc
    return path


# --- Mail server ---

_ADDRESS = re.compile(r"[^@\s<>(),:;\"\\\[\]]{1,64}@[^@\s<>(),:;\"\\\[\]]{1,253}")


def parse_host(text: str) -> str:
    """Parse the name or the IP address of a host; an IPv6 address may have brackets."""
    is_ipv6 = ":" in text
    if not _is_host(f"[{text.strip('[]')}]" if is_ipv6 else text):
        raise InvalidSetting(f"{quote_input(text)} is not the name or address of a host")
    return text.strip("[]") if is_ipv6 else text


def parse_mail_address(text: str) -> str:
    """Parse an e-mail address without a name."""
    try:
        text.rpartition("@")[2].encode("idna")
    except UnicodeError:
        is_domain = False
    else:
        is_domain = True
    if not is_domain or not text.isprintable() or not _ADDRESS.fullmatch(text):
        raise InvalidSetting(f"{quote_input(text)} is not an address such as meshfleet@example.org")
    return text


# --- Switches, choices and numbers ---


def parse_switch(text: str) -> bool:
    """Return True for `on` and False for `off`."""
    if text not in {"on", "off"}:
        raise InvalidSetting(f"{quote_input(text)} is neither on nor off")
    return text == "on"


def parse_choice(text: str, *, choices: tuple[str, ...]) -> str:
    """Return a text that is one of `choices` unchanged."""
    if text not in choices:
        raise InvalidSetting(f"{quote_input(text)} is none of {', '.join(choices)}")
    return text


MAX_NUMBER: Final = 10**12
"""Maximum value of any setting that is a number, so that no sum of settings overflows."""

_WHOLE = re.compile(r"[0-9]{1,13}")
_SECONDS = re.compile(r"[0-9]{1,12}(\.[0-9]{1,9})?")


def parse_integer(text: str, *, least: int, most: int) -> int:
    """Parse a whole number from `least` to `most`."""
    if not _WHOLE.fullmatch(text) or not least <= int(text) <= most:
        raise InvalidSetting(f"{quote_input(text)} is not a whole number from {least} to {most}")
    return int(text)


_MIN_RETENTION_SECONDS: Final = 3600
"""Minimum retention in seconds. Expired history is deleted about once an hour, a whole day at a time."""


def parse_retention(text: str) -> int | None:
    """Parse how long history is kept, in seconds. Return None for `forever`."""
    return None if text == "forever" else parse_integer(text, least=_MIN_RETENTION_SECONDS, most=MAX_NUMBER)


def parse_seconds(text: str) -> float:
    """Parse a duration in seconds, with up to nine decimals (rest-166)."""
    if not _SECONDS.fullmatch(text) or not float(text):
        raise InvalidSetting(f"{quote_input(text)} is not a positive number of seconds, such as 60 or 0.5")
    return float(text)
