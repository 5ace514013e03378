"""Synthetic site of a running service: anchors with places, and reports of devices at true places."""

from __future__ import annotations

from itertools import count
from math import hypot, log10
from random import Random
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from meshfleet.rest.paths import SITES_PATH
from tests.positioning.rooms import ANCHOR_PLACES, DEPTH, EXPONENT, FLOOR_LOSS, NOISE_DB, POWER, WIDTH
from tests.service.ingest.messages import A, build_report, heartbeat

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import httpx

    from meshfleet.mqtt.codec.packets import Publish
    from tests.service.live.live_service import LiveService

SECOND, MINUTE, DAY = 1000, 60_000, 86_400_000
_SENSITIVITY: Final = -97


class TruePlace(NamedTuple):
    """Place at which a device really is."""

    x: float
    y: float
    floor: int = 0


class SyntheticSite:
    """Site with eight anchors on each floor, which receive every device that is near enough."""

    def __init__(self, service: LiveService, *, number: int, floors: int = 1, anchors: int = 8) -> None:
        """Create the site. Its devices have MACs with the number, which differs from that of other sites."""
        self.service = service
        self._random = Random(number)  # noqa: S311 # the same in each run
        self._numbers = count(number << 16)
        self._first_anchor = 0xC0FFEE000000 + (number << 16) + 0x8000
        areas = [
            {"floor": each, "minX": 0, "minY": 0, "maxX": WIDTH, "maxY": DEPTH} for each in range(floors)
        ]
        response = service.operator.post(SITES_PATH, json={"name": f"Site {number}", "floors": areas})
        assert response.status_code == 201, response.text
        self.id: str = response.json()["id"]
        service.admin.post("/api/v1/gateways", json={"mac": A})
        self.anchors = {
            self._name_anchor(index): TruePlace(float(x), float(y), floor)
            for index, (floor, (x, y)) in enumerate(
                (floor, place) for floor in range(floors) for place in ANCHOR_PLACES[:anchors]
            )
        }
        """Where each anchor really is."""
        self.register(*self.anchors)
        self.set_places(self.anchors)

    def _name_anchor(self, index: int) -> str:
        return f"{self._first_anchor + index:012x}"

    @property
    def path(self) -> str:
        return f"{SITES_PATH}/{self.id}"

    def new_device(self) -> str:
        """Return the MAC of a device that no other test uses, and register it."""
        mac = f"{0xC0FFEE000000 + next(self._numbers):012x}"
        self.register(mac)
        return mac

    def new_place(self, floor: int = 0) -> TruePlace:
        """Return a random place."""
        return TruePlace(self._random.uniform(0, WIDTH), self._random.uniform(0, DEPTH), floor)

    def register(self, *devices: str) -> None:
        """Make the service know devices."""
        now = self.service.clock()
        self.service.ingest_and_flush(*(heartbeat(now, device=each) for each in devices))

    def set_places(self, places: dict[str, TruePlace]) -> None:
        """Tell the service where anchors are."""
        body = [
            {"device": f"bmac-{mac}", "floor": place.floor, "x": place.x, "y": place.y}
            for mac, place in places.items()
        ]
        response = self.service.operator.post(f"{self.path}/places", json={"places": body})
        assert response.status_code == 200, response.text

    def populate(self, devices: int, *, minutes: int = 2) -> dict[str, TruePlace]:
        """Report devices at random places, and return them: the calibration learns from their readings."""
        now = self.service.clock()
        floors = [each.floor for each in self.anchors.values()]
        placed = {self.new_device(): self.new_place(self._random.choice(floors)) for _ in range(devices)}
        for minute in range(minutes):
            at = now - minute * MINUTE - SECOND
            self.service.ingest(
                *(each for device, place in placed.items() for each in self.read(device, place, at))
            )
        return placed

    def read(
        self, device: str, place: TruePlace, at: int, *, anchors: Iterable[str] | None = None
    ) -> list[Publish]:
        """Build the reports of all anchors, or of some, that receive a device at a place."""
        return [
            report_rssi(at, device, anchor, rssi)
            for anchor in (self.anchors if anchors is None else anchors)
            if (rssi := self._draw_rssi(place, self.anchors[anchor])) >= _SENSITIVITY
        ]

    def _draw_rssi(self, place: TruePlace, anchor: TruePlace) -> int:
        distance = max(hypot(place.x - anchor.x, place.y - anchor.y), 0.5)
        loss = 10 * EXPONENT * log10(distance) + FLOOR_LOSS * abs(place.floor - anchor.floor)
        return round(POWER - loss + self._random.gauss(0, NOISE_DB))

    def get_position(self, device: str, **query: Any) -> dict[str, Any]:
        """Return the position of a device and the reason why it is unknown."""
        return get(self.service, f"/api/v1/devices/bmac-{device}/position", **query)

    def survey(self, device: str, place: TruePlace, **fields: Any) -> httpx.Response:
        """Say that a device is at a place."""
        body = {"device": f"bmac-{device}", "floor": place.floor, "x": place.x, "y": place.y, **fields}
        return self.service.operator.post(f"{self.path}/survey", json=body)


def get(service: LiveService, path: str, **query: Any) -> dict[str, Any]:
    """Return the answer to a request of a viewer."""
    response = service.viewer.get(path, params=query)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


def report_rssi(at: int, device: str, anchor: str, rssi: int) -> Publish:
    """Build the report of an anchor that receives a device."""
    return build_report("rssi", at, device=device, parent=anchor, rssi=rssi)


def measure_errors(found: Sequence[dict[str, Any]], places: Sequence[TruePlace]) -> list[float]:
    """Return the distances between found and true places in meters."""
    return [
        hypot(each["x"] - place.x, each["y"] - place.y) for each, place in zip(found, places, strict=True)
    ]
