"""Guard of outgoing requests: decides to which hosts the URLs of channels may lead.

Users choose these URLs, and the service calls them from inside the network of its operator: without a guard
a URL could reach the router, the database or the metadata service of a cloud (server-side request forgery).

- `check_target` checks a URL when a channel is created.
- `TargetGuard.resolve_target` checks it at each attempt. The caller then connects to the address that was
  checked, never to the name: a second resolution could lead elsewhere (DNS rebinding).

All addresses of a host are checked as numbers, after the resolution, so other spellings of an address, such
as `2130706433` or `127.1`, change nothing.
"""

from __future__ import annotations

import asyncio
import re
import socket
from concurrent.futures import ThreadPoolExecutor
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias
from urllib.parse import urlsplit

from meshfleet.errors import TargetForbidden

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from urllib.parse import SplitResult

    from meshfleet.settings.model import WebhookSettings

    Resolver = Callable[[str, int], Awaitable[Sequence[str]]]
    """Function that returns the addresses of a host and port, or raises `OSError`."""

_Address: TypeAlias = IPv4Address | IPv6Address
_Network: TypeAlias = IPv4Network | IPv6Network

MAX_URL_LENGTH: Final = 2000
_CHECK_SECONDS: Final = 5.0
"""Maximum number of seconds that the resolution of a host takes when a channel is created."""
_DEFAULT_PORTS: Final = {"https": 443, "http": 80}

_ALWAYS_CLOSED: Final[tuple[_Network, ...]] = tuple(
    map(
        ip_network,
        (
            "0.0.0.0/8",  # unspecified: Linux connects to itself
            "169.254.0.0/16",  # link-local, and metadata of most clouds
            "100.100.100.200",  # metadata of Alibaba Cloud
            "168.63.129.16",  # control of virtual machines of Azure, though a public address
            "192.0.0.192",  # metadata of Oracle Cloud
            "224.0.0.0/4",  # multicast
            "255.255.255.255",  # broadcast
            "::",
            "fe80::/10",
            "fd00:ec2::/32",  # metadata and other services of AWS, such as fd00:ec2::254
            "fd20:ce::/32",  # metadata of Google Cloud
            "ff00::/8",
        ),
    )
)
"""Networks that no setting opens."""

_PUBLIC_IPV6: Final = IPv6Network("2000::/3")
"""All IPv6 addresses that are assigned on the internet. Of others, `is_global` is not reliable."""

_LOOPBACK_IPV6: Final = IPv6Address("::1")

_EMBEDDING: Final = tuple(
    (IPv6Network(network), shift)
    for network, shift in (
        ("::/96", 0),  # IPv4-compatible, deprecated
        ("::ffff:0:0/96", 0),  # IPv4-mapped
        ("::ffff:0:0:0/96", 0),  # IPv4-translated (RFC 7915)
        ("64:ff9b::/96", 0),  # NAT64 (RFC 6052)
        ("64:ff9b:1::/96", 0),  # NAT64 of a site (RFC 8215)
        ("2002::/16", 80),  # 6to4
    )
)
"""IPv6 networks whose addresses lead to an IPv4 address, and how many bits are right of it."""

_resolver_threads: Final = ThreadPoolExecutor(4, "notifications.dns")
"""Threads of the resolver: a dead DNS server must not occupy the threads that others need."""


class TargetUnresolved(Exception):
    """Raised when a host has no address now."""


class Target(NamedTuple):
    """Host that was checked, with the addresses to connect to."""

    addresses: tuple[str, ...]
    """Addresses that were checked, in the order in which to try them."""
    scheme: str
    host: str
    """Name of the host in ASCII, which its certificate must have."""
    port: int
    path: str
    """Path and query."""

    @property
    def host_header(self) -> str:
        """Value of the header `Host`."""
        host = _add_brackets(self.host)
        return host if self.port == _DEFAULT_PORTS[self.scheme] else f"{host}:{self.port}"

    def build_url(self, address: str) -> str:
        """Return the URL with an address instead of the host."""
        return f"{self.scheme}://{_add_brackets(address)}:{self.port}{self.path}"

    def __repr__(self) -> str:  # the path may be a secret
        return f"Target({self.scheme}://{self.host_header}/…)"


class TargetGuard:
    """Guard that resolves and checks the URLs of channels."""

    def __init__(self, policy: WebhookSettings, *, resolve: Resolver | None = None) -> None:
        """Create a guard. `resolve` replaces the resolver of the system."""
        self._policy = policy
        self._resolve = resolve or resolve_host

    async def resolve_target(self, url: str) -> Target:
        """Resolve the host of a URL, and check all its addresses.

        Raise `TargetForbidden` if one of them is closed, and `TargetUnresolved` if there is none.
        """
        parts, host, port = _parse_url(url, self._policy)
        try:
            found = await self._resolve(host, port)
        except (OSError, UnicodeError) as exc:
            raise TargetUnresolved(host) from exc
        addresses = tuple(dict.fromkeys(found))
        if not addresses:
            raise TargetUnresolved(host)
        for each in addresses:
            _check_address(ip_address(each.partition("%")[0]), self._policy.allow)
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        return Target(addresses, parts.scheme, host.removesuffix("."), port, path)

    async def check(self, url: str) -> None:
        """Raise `TargetForbidden` if a URL is closed now. A host without an address may get one later."""
        try:
            async with asyncio.timeout(_CHECK_SECONDS):
                await self.resolve_target(url)
        except (TargetUnresolved, TimeoutError):
            return


async def check_target(url: str, policy: WebhookSettings) -> None:
    """Raise `TargetForbidden` if the URL of a channel is invalid, or leads to a host that is closed."""
    await TargetGuard(policy).check(url)


async def resolve_host(host: str, port: int) -> list[str]:
    """Return the addresses of a host, as the system resolves it. Raise `OSError` if there is none."""
    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(_resolver_threads, _resolve_host, host, port)


def _resolve_host(host: str, port: int) -> list[str]:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(address[0]) for *_, address in found]


def _parse_url(url: str, policy: WebhookSettings) -> tuple[SplitResult, str, int]:
    """Return the parts of a URL, its host in ASCII, and its port. Errors never quote it: it may be secret."""
    if len(url) > MAX_URL_LENGTH:
        raise TargetForbidden(f"the URL is longer than {MAX_URL_LENGTH} characters: use a shorter one")
    if not url.isprintable() or re.search(r"[\s\\]", url):
        raise TargetForbidden("the URL has spaces or other characters that URLs cannot have: encode them")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise TargetForbidden("the text is not a URL such as https://hooks.example.org/…") from None
    _check_scheme(parts.scheme, policy)
    if "@" in parts.netloc:
        raise TargetForbidden("the URL has a user or password before the host: remove them")
    if port == 0:
        raise TargetForbidden("the URL has port 0: use the port of the receiver")
    return parts, _parse_host(parts.hostname or ""), port or _DEFAULT_PORTS[parts.scheme]


def _check_scheme(scheme: str, policy: WebhookSettings) -> None:
    if scheme == "http" and not policy.allow_http:
        raise TargetForbidden(
            "the URL begins with http://: use https://, or set webhooks.allow-http to on if the receiver has"
            " no TLS"
        )
    if scheme not in _DEFAULT_PORTS:
        raise TargetForbidden("the URL must begin with https://")


def _parse_host(host: str) -> str:
    """Return a host in ASCII. Names with other letters are converted as in DNS (IDNA)."""
    try:
        ascii_host = host if ":" in host else host.encode("idna").decode()
    except UnicodeError:
        raise TargetForbidden("the host of the URL is not a valid name: correct it") from None
    if not re.fullmatch(r"[a-z0-9._-]+|[0-9a-f:.]+", ascii_host, re.IGNORECASE):
        raise TargetForbidden("the URL has no valid host: write it as in https://hooks.example.org/…")
    return ascii_host


def _check_address(address: _Address, allowed: Sequence[_Network]) -> None:
    """Raise `TargetForbidden` if an address, or the IPv4 address that it leads to, is closed."""
    inner = _extract_ipv4(address)
    forms = (address,) if inner is None else (address, inner)
    if any(each in network for each in forms for network in _ALWAYS_CLOSED):
        raise TargetForbidden(
            f"the host has the address {address}, which is link-local, multicast or of a metadata service:"
            " messages are never sent there; use another host"
        )
    if any(each in network for each in forms for network in allowed) or _is_public(forms[-1]):
        return
    raise TargetForbidden(
        f"the host has the address {address}, which is not public: if messages may be sent there, add the"
        " address or its network to the setting webhooks.allow"
    )


def _extract_ipv4(address: _Address) -> IPv4Address | None:
    """Return the IPv4 address to which an IPv6 address leads, if it does."""
    if isinstance(address, IPv4Address) or address == _LOOPBACK_IPV6:
        return None
    for network, shift in _EMBEDDING:
        if address in network:
            return IPv4Address(int(address) >> shift & 0xFFFF_FFFF)
    return None


def _is_public(address: _Address) -> bool:
    return (
        address.is_global
        and not address.is_multicast
        and not address.is_reserved
        and (isinstance(address, IPv4Address) or address in _PUBLIC_IPV6)
    )


def _add_brackets(host: str) -> str:
    return f"[{host}]" if ":" in host else host
