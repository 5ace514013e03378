"""Groups IP addresses by network, for limits per client."""

from __future__ import annotations

from ipaddress import IPv6Address, ip_network


def to_network(address: str) -> str:
    """Return an IPv4 address unchanged, and an IPv6 address as its /64 network.

    One machine may own a whole /64. An IPv4-mapped IPv6 address (`::ffff:192.0.2.1`) is returned as IPv4. A
    string that is not an IP address is returned unchanged.
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
