"""Devices and gateways as they are named in paths."""

from __future__ import annotations

from meshfleet.errors import MalformedId, NotFound
from meshfleet.service.http.paths import segment
from meshfleet.wire.ids import Mac, mac_of, parse_device_id, parse_mac


def device_in_path(text: str) -> Mac:
    """Read the id of a device; there is none with an id that cannot be (rest-15)."""
    try:
        return mac_of(parse_device_id(segment(text)))
    except MalformedId:
        raise NotFound("there is no such device") from None


def gateway_in_path(text: str) -> Mac:
    """Read the MAC or the device id of a gateway (rest-76)."""
    try:
        return parse_gateway(segment(text))
    except MalformedId:
        raise NotFound("there is no such gateway") from None


def parse_gateway(text: str, field: str = "mac") -> Mac:
    """Read the MAC or the device id of a gateway, in either case (id-3, rest-76)."""
    return parse_mac(text.lower().removeprefix("bmac-"), field)
