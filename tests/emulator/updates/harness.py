"""A site with devices on four floors, and a gateway whose time, requests and images a test supplies.

floor 3   WRISTBAND: in range of DEEP only, and so out of range of the gateway
floor 2   DEEP, an extender
floor 1   HIGH, an extender
floor 0   the gateway, EAST and WEST (extenders), and all others
"""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from meshfleet.emulator import (
    EmulatorSettings,
    Faults,
    GatewayEmulator,
    ReportMode,
    SimulatedClock,
    parse_site,
)
from meshfleet.emulator.context import CloseConnection, FetchImage, OpenConnection
from meshfleet.emulator.updates.update_state import Error, ImageKey, State
from meshfleet.protocol.firmware_image import ImageInfo
from meshfleet.protocol.ids import Mac, ModelNumber, Version
from meshfleet.protocol.times import parse_time

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from meshfleet.emulator import Site
    from meshfleet.mqtt.codec.packets import Publish
    from meshfleet.protocol.diagnostics import ImageRequest

GATEWAY: Final = Mac("d0cf5e000001")
EAST, WEST = Mac("c00000000010"), Mac("c00000000012")
HIGH, DEEP = Mac("c00000000014"), Mac("c00000000016")
ONE, TWO = Mac("c00000000020"), Mac("c00000000022")
"""Motion sensors connected to EAST."""
THREE: Final = Mac("c00000000024")
"""Motion sensor connected to WEST."""
EMPTY: Final = Mac("c00000000026")
"""Motion sensor connected to WEST, with a low battery."""
TRACKER: Final = Mac("c0000000003f")
"""Connected device whose MAC plus one has a carry."""
CLIP: Final = Mac("c00000000042")
"""Legacy device with an nRF51."""
BUTTON: Final = Mac("c00000000044")
"""Unconnected device that supports downloads."""
WRISTBAND: Final = Mac("c00000000046")

_DEVICES: Final[list[dict[str, Any]]] = [
    {"mac": EAST, "model": "0040", "x": 8, "y": 0, "parent": GATEWAY},
    {"mac": WEST, "model": "0040", "x": -8, "y": 0, "parent": GATEWAY},
    {"mac": HIGH, "model": "0040", "floor": 1, "x": 0, "y": 0, "parent": GATEWAY},
    {"mac": DEEP, "model": "0040", "floor": 2, "x": 0, "y": 0, "parent": HIGH},
    {"mac": ONE, "model": "0018", "x": 10, "y": 1, "parent": EAST},
    {"mac": TWO, "model": "0018", "x": 10, "y": -1, "parent": EAST},
    {"mac": THREE, "model": "0018", "x": -10, "y": 1, "parent": WEST},
    {"mac": EMPTY, "model": "0018", "x": -10, "y": -1, "parent": WEST, "battery": 5},
    {"mac": TRACKER, "model": "0005", "x": 1, "y": 1, "parent": GATEWAY},
    {"mac": CLIP, "model": "000F", "x": 1, "y": -1, "access": "legacy"},
    {"mac": BUTTON, "model": "0060", "x": 2, "y": 2},
    {"mac": WRISTBAND, "model": "0063", "floor": 3, "x": 0, "y": 0},
]

MOTION, TRACKER_MODEL = ModelNumber("0018"), ModelNumber("0005")
CLIP_MODEL, BUTTON_MODEL, BAND_MODEL = ModelNumber("000F"), ModelNumber("0060"), ModelNumber("0063")
GATEWAY_MODEL: Final = ModelNumber("2011")
NEWER: Final = Version(3, 1, 0)
SMALL_IMAGE: Final = ImageInfo(6000, b"", MOTION)
"""Image that takes 20 seconds on a branch of its own."""


class ReportedUpdateState(NamedTuple):
    """Decoded value of 8120, 8125 or 8130."""

    state: State
    percent: int
    error: Error
    image: ImageKey
    rest: bytes

    @classmethod
    def from_bytes(cls, raw: bytes) -> ReportedUpdateState:
        return cls(State(raw[0]), raw[1], Error(raw[2]), ImageKey.from_bytes(raw, 3), raw[9:])

    @property
    def counts(self) -> tuple[int, int]:
        """Number of devices done and in total, in 8125."""
        return int.from_bytes(self.rest[:2], "big"), int.from_bytes(self.rest[2:], "big")


@dataclass(frozen=True)
class Report:
    """Report that is decoded on first use: most are irrelevant to a test."""

    device: Mac
    kind: str
    identifier: str
    payload: bytes

    @cached_property
    def content(self) -> dict[str, Any]:
        content: dict[str, Any] = json.loads(self.payload)
        return content

    @property
    def t(self) -> float:
        """Simulated time of the report."""
        return parse_time(self.content["time"]).timestamp() - _ORIGIN / 1000.0


def image_key_bytes(model: ModelNumber = MOTION, version: Version = NEWER) -> bytes:
    return ImageKey(model, version).to_bytes()


def image(model: ModelNumber | None = None, size: int = 6000) -> ImageInfo:
    return ImageInfo(size, b"", model)


def build_test_site(
    devices: Sequence[dict[str, Any]] = _DEVICES, *, gateway: Mac = GATEWAY, seed: int = 1
) -> Site:
    text = json.dumps({"devices": list(devices)}).replace(GATEWAY, gateway)
    return parse_site(text.encode(), source="test site", gateway=gateway, seed=seed)


class UpdateHarness:
    """Gateway driven by a test."""

    def __init__(self, site: Site | None = None, **faults: float) -> None:
        site = site or build_test_site()
        self.mac = site.gateway
        settings = EmulatorSettings(mac=self.mac, mode=ReportMode.RAW, faults=Faults(**faults))
        self.gateway = GatewayEmulator(settings, site, SimulatedClock(_ORIGIN))
        self.now = 0.0
        self.reports: list[Report] = []
        self._reports_by_key: defaultdict[tuple[Mac, str], list[Report]] = defaultdict(list)
        """Reports by device, and by kind or identifier."""
        self.responses: dict[str, dict[str, Any]] = {}
        self.image_requests: list[ImageRequest] = []
        """Image requests without a response yet."""
        self.all_image_requests: list[ImageRequest] = []
        self.is_restarting = False
        self._request_count = 0
        self.advance(1.0)

    def advance(self, seconds: float) -> None:
        """Advance the time."""
        self.now += seconds
        self._record(self.gateway.advance(self.now))

    def advance_until(self, condition: Callable[[], object], *, within: float = 1200.0) -> None:
        """Advance the time until a condition holds."""
        deadline = self.now + within
        while not condition():
            assert self.now < deadline, "the condition was never true"
            self.advance(0.5)

    def _record(self, messages: list[Publish]) -> None:
        for message in messages:
            section, device, kind, *identifier_levels = message.topic.split("/")[3:]
            if section == "response":
                content = json.loads(message.payload)
                self.responses[content["id"]] = content
                continue
            report = Report(Mac(device), kind, "/".join(identifier_levels), message.payload)
            self.reports.append(report)
            for key in {kind, report.identifier}:
                self._reports_by_key[report.device, key].append(report)
        for action in self.gateway.drain_actions():
            self._perform(action)

    def _perform(self, action: FetchImage | CloseConnection | OpenConnection) -> None:
        match action:
            case FetchImage(image_request):
                assert not self.is_restarting, "a gateway that is down cannot request an image"
                self.image_requests.append(image_request)
                self.all_image_requests.append(image_request)
            case CloseConnection():
                self.is_restarting = True
                self.image_requests.clear()  # a restart cancels the fetch of images
            case OpenConnection():
                self.is_restarting = False

    # Requests

    def send(self, device: Mac, operation: str, identifier: str, **content: Any) -> str:
        """Send a request. Return the id of its response."""
        self._request_count += 1
        request_id = f"r{self._request_count}"
        if device == CLIP:
            content["accessType"] = "legacy"
        topic = f"mt/gateway/{self.mac}/request/{device}/{operation}/{identifier}"
        self.gateway.receive(topic, json.dumps({"id": request_id, **content}).encode(), self.now)
        return request_id

    def request(self, device: Mac, operation: str, identifier: str, **content: Any) -> dict[str, Any]:
        """Send a request and wait for its response."""
        request_id = self.send(device, operation, identifier, **content)
        self.advance_until(lambda: request_id in self.responses, within=15.0)
        return self.responses[request_id]

    def write(self, device: Mac, identifier: str, raw: bytes) -> int:
        """Write a property. Return the status of the response."""
        status: int = self.request(device, "write", identifier, value=raw.hex())["status"]
        return status

    def read(self, device: Mac, identifier: str) -> bytes:
        response = self.request(device, "read", identifier)
        assert response["status"] == 0, response
        return bytes.fromhex(response["value"])

    def version(self, device: Mac) -> Version:
        return Version(*self.read(device, "8001"))

    # Updates

    def start(
        self, device: Mac, model: ModelNumber = MOTION, version: Version = NEWER, *, stage: bool = False
    ) -> int:
        return self.write(device, "8121", image_key_bytes(model, version) + bytes((stage,)))

    def deliver_image(self, result: ImageInfo | Error = SMALL_IMAGE) -> None:
        """Answer the oldest image request with an image or an error."""
        image_request = self.image_requests.pop(0)
        if isinstance(result, Error):
            self.gateway.on_image_failed(image_request, result, self.now)
        else:
            self.gateway.on_image_fetched(image_request, result, self.now)
        self.advance(0.0)

    def update_states(self, device: Mac = GATEWAY, identifier: str = "8120") -> list[ReportedUpdateState]:
        """Return all reported states of an update."""
        return [
            ReportedUpdateState.from_bytes(bytes.fromhex(report.content["value"]))
            for report in self.reports_of(device, identifier)
        ]

    def reports_of(self, device: Mac, kind_or_identifier: str) -> list[Report]:
        """Return the reports of a device of one kind or identifier."""
        return list(self._reports_by_key[device, kind_or_identifier])

    def state(self, device: Mac, identifier: str = "8120") -> State:
        """Return the last reported state."""
        reports = self._reports_by_key[device, identifier]
        return (
            ReportedUpdateState.from_bytes(bytes.fromhex(reports[-1].content["value"])).state
            if reports
            else State.IDLE
        )

    def wait_for_state(
        self, state: State, device: Mac, identifier: str = "8120", *, within: float = 1200.0
    ) -> ReportedUpdateState:
        """Wait until a state is reported. Return the report."""
        self.advance_until(lambda: self.state(device, identifier) is state, within=within)
        return self.update_states(device, identifier)[-1]


_ORIGIN: Final = 1_790_000_000_000
