"""Sites with anchors and devices that are received by them; removed at the end of a test."""

from __future__ import annotations

import math
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

from meshfleet.protocol.times import format_millis
from tests.browser.demo_gateways import connected_gateway, new_mac
from tests.eventually import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tests.scenarios.service_process import ServiceProcess
    from tests.service.requests.scripted_gateway import ScriptedGateway

    Point = tuple[float, float]

ANCHOR_PLACES: Final[tuple[Point, ...]] = ((1, 1), (19, 1), (1, 11), (19, 11), (10, 6), (10, 1))
"""Coordinates of the anchors of a site."""

FLOORS: Final[list[dict[str, Any]]] = [
    {"floor": 0, "name": "Ground floor", "minX": 0, "minY": 0, "maxX": 20, "maxY": 12},
    {"floor": 1, "name": "Upper floor", "minX": 0, "minY": 0, "maxX": 20, "maxY": 12},
]

PLAN: Final = b"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 400 240" stroke="#333">
<path fill="#fff" d="M2 2h396v236H2z"/>
<path fill="none" stroke-width="3" d="M160 0v90M160 130v110M160 90H60M260 0v240M260 150h140"/>
</svg>"""
"""Picture of a floor: 20 pixels per meter."""

_RSSI_AT_1_M: Final = -48


class PlanSite:
    """Site with six anchors, whose devices are received as far away as a test says."""

    def __init__(self, demo: ServiceProcess, gateway: ScriptedGateway) -> None:
        self._demo = demo
        self._gateway = gateway
        prefix = f"c2{uuid4().hex[:8]}"
        self.anchors = [f"{prefix}{index:02x}" for index in range(len(ANCHOR_PLACES))]
        self.devices = [f"{prefix}{index:02x}" for index in range(0xA0, 0xA3)]
        self.site = ""

    def create(self, name: str) -> None:
        """Create the site with its anchors."""
        self.report({(anchor, self._gateway.mac): -50 for anchor in self.anchors + self.devices})
        ids = {f"bmac-{mac}" for mac in self.anchors + self.devices}
        path = f"/api/v1/devices?Gateway={self._gateway.mac}"
        eventually(lambda: ids <= {each["id"] for each in self._demo.call("GET", path)["items"]}, "devices")
        self.site = self._demo.call("POST", "/api/v1/sites", {"name": name, "floors": FLOORS})["id"]
        places = [
            {"device": f"bmac-{mac}", "floor": 0, "x": x, "y": y}
            for mac, (x, y) in zip(self.anchors, ANCHOR_PLACES, strict=True)
        ]
        self._demo.call("POST", f"/api/v1/sites/{self.site}/places", {"places": places})

    def receive(
        self, device: str, place: Point, *, anchors: int = len(ANCHOR_PLACES), age_seconds: int = 0
    ) -> None:
        """Let the first anchors receive a device at a place."""
        self.report(
            {
                (device, anchor): round(_RSSI_AT_1_M - 25 * math.log10(max(1, math.dist(place, at))))
                for anchor, at in zip(self.anchors[:anchors], ANCHOR_PLACES, strict=False)
            },
            age_seconds=age_seconds,
        )

    def report(self, readings: Mapping[tuple[str, str], int], *, age_seconds: int = 0) -> None:
        """Report readings in dBm, by device and parent."""
        read_at = format_millis(time.time_ns() // 1_000_000 - age_seconds * 1000)
        for (device, parent), rssi in readings.items():
            topic = f"mt/gateway/{self._gateway.mac}/device/{device}/rssi"
            self._gateway.report(topic, time=read_at, parent=parent, rssi=rssi)

    def wait_for_positions(self, *devices: str) -> None:
        """Wait until devices have a position on the site."""
        ids = {f"bmac-{mac}" for mac in devices}
        path = f"/api/v1/sites/{self.site}/positions"
        eventually(
            lambda: ids <= {each["device"] for each in self._demo.call("GET", path)["items"]}, "positions"
        )


@contextmanager
def plan_site(demo: ServiceProcess, name: str) -> Iterator[PlanSite]:
    """Yield a site with anchors on its ground floor; the site and its devices are deleted at the end."""
    with new_mac(demo) as mac:
        account = demo.claim(mac)
        with connected_gateway(demo, mac, account.password) as gateway:
            site = PlanSite(demo, gateway)
            try:
                site.create(name)
                yield site
            finally:
                if site.site in {each["id"] for each in demo.call("GET", "/api/v1/sites")["items"]}:
                    demo.call("DELETE", f"/api/v1/sites/{site.site}")
        behind = demo.call("GET", f"/api/v1/devices?Gateway={mac}")["items"]
        for device in behind:
            if device["id"] != f"bmac-{mac}":
                demo.call("DELETE", f"/api/v1/devices/{device['id']}")
