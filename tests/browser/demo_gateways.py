"""Gateways that a test adds to the demo fleet and removes at its end."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING
from uuid import uuid4

from tests.service.requests.scripted_gateway import ScriptedGateway, never_respond

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.scenarios.service_process import ServiceProcess
    from tests.service.requests.scripted_gateway import Responder


@contextmanager
def new_mac(demo: ServiceProcess) -> Iterator[str]:
    """Yield the MAC of an unclaimed gateway. If the test claims it, it is released and deleted at the end."""
    mac = f"02{uuid4().hex[:10]}"
    try:
        yield mac
    finally:
        page = demo.call("GET", "/api/v1/gateways?MaxResults=1000")
        if any(each["mac"] == mac for each in page["items"]):
            demo.release(mac)
        if demo.call("GET", f"/api/v1/devices?Ids=bmac-{mac}")["items"]:
            demo.call("DELETE", f"/api/v1/devices/bmac-{mac}")


@contextmanager
def connected_gateway(
    demo: ServiceProcess, mac: str, password: str, responder: Responder = never_respond
) -> Iterator[ScriptedGateway]:
    """Run a scripted gateway that logs in with a password."""
    gateway = ScriptedGateway(demo.mqtt["mqtt"].port, mac, responder, password=password)
    gateway.start()
    try:
        yield gateway
    finally:
        gateway.stop()
