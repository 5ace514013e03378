"""Gateways of a test's own, in the demo fleet: gone without a trace when it ends."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING
from uuid import uuid4

from tests.service.requests.third_party import Gateway, nothing

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.scenarios.serving import Service
    from tests.service.requests.third_party import Manner


@contextmanager
def new_mac(demo: Service) -> Iterator[str]:
    """The MAC of a gateway that nobody has claimed yet; if a test claims it, it is released again."""
    mac = f"02{uuid4().hex[:10]}"
    try:
        yield mac
    finally:
        page = demo.ask("GET", "/api/v1/gateways?MaxResults=1000")
        if any(each["mac"] == mac for each in page["items"]):
            demo.release(mac)
        if demo.ask("GET", f"/api/v1/devices?Ids=bmac-{mac}")["items"]:
            demo.ask("DELETE", f"/api/v1/devices/bmac-{mac}")


@contextmanager
def connected(demo: Service, mac: str, password: str, manner: Manner = nothing) -> Iterator[Gateway]:
    """A gateway of another make, which is let in with a password."""
    made = Gateway(demo.mqtt["mqtt"].port, mac, manner, password=password)
    made.start()
    try:
        yield made
    finally:
        made.stop()
