"""Which addresses belong together."""

from __future__ import annotations

from ipaddress import IPv6Address, ip_network


def to_network(address: str) -> str:
    """Return an address, or the /64 network of an IPv6 address: one machine may have all of it.

    IPv4 in the form that a socket for both shows (`::ffff:192.0.2.1`) is returned as IPv4. What is no address
    is returned as it is.
    """
    if ":" not in address:
        return address
    try:
        parsed = IPv6Address(address.partition("%")[0])
    except ValueError:
        return address
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return str(ip_network((parsed, 64), strict=False))
