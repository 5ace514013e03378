"""A house of a test's own, whose devices are to be updated: gone when the test ends, but for its jobs."""

from __future__ import annotations

import json
from contextlib import contextmanager
from itertools import count
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from uuid import uuid4

from tests.browser.demo_gateways import new_mac
from tests.cli.programs import Program
from tests.eventually import eventually
from tests.scenarios.update_site import build_test_package

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.scenarios.service_process import ServiceProcess

MODEL: Final = "0018"
SPEED: Final = "100"
"""Heartbeats more than once in a second; an image takes a second or two."""

_versions = count()


class UpdateTarget(NamedTuple):
    """Devices behind a gateway, and firmware that they do not have yet."""

    service: ServiceProcess
    gateway: str
    devices: list[str]
    firmware: str
    version: str

    def create_job(self, **order: Any) -> dict[str, Any]:
        """Make a job for all of them."""
        body = {
            "name": f"A house {uuid4().hex[:8]}",
            "firmwareId": self.firmware,
            "targets": {"deviceIds": self.devices},
        }
        made: dict[str, Any] = self.service.call("POST", "/api/v1/jobs", body | order)
        return made


class EmulatedSite:
    """A gateway with devices of one model near to it: emulated, and gone without a trace in the end."""

    def __init__(self, demo: ServiceProcess, folder: Path, mac: str, devices: int) -> None:
        folder.mkdir(exist_ok=True)
        place = folder / "site.json"
        place.write_text(json.dumps(_site(mac, devices)))
        account = demo.claim(mac)
        broker = f"mqtt://{account.user}:{account.password}@127.0.0.1:{demo.mqtt['mqtt'].port}"
        self._given = ("--broker", broker, "--mac", mac, "--site", str(place), "--speed", SPEED)
        self._demo = demo
        self._count = devices
        self.gateway = mac
        self.devices: list[str] = []

    @contextmanager
    def running(self, *faults: str) -> Iterator[None]:
        """Let it report for as long as this lasts; `faults` as `meshfleet gateway` takes them."""
        trouble = [word for fault in faults for word in ("--fault", fault)]
        with Program("gateway", *self._given, *trouble):
            self.devices = _wait_for_devices(self._demo, self.gateway, self._count)
            yield


@contextmanager
def new_site(demo: ServiceProcess, folder: Path, *, devices: int) -> Iterator[EmulatedSite]:
    """One that nobody knows yet; when this ends it must be silent, or it would come back."""
    with new_mac(demo) as mac:
        try:
            yield EmulatedSite(demo, folder, mac, devices)
        finally:
            _wait_until_disconnected(demo, mac)
            behind = demo.call("GET", f"/api/v1/devices?Gateway={mac}")["items"]
            demo.release(mac)
            for device in behind:
                if device["id"] != f"bmac-{mac}":
                    demo.call("DELETE", f"/api/v1/devices/{device['id']}")


@contextmanager
def update_target(
    demo: ServiceProcess, folder: Path, *faults: str, devices: int = 3
) -> Iterator[UpdateTarget]:
    """A site whose devices are to be updated, and the firmware for it."""
    with new_site(demo, folder, devices=devices) as site, site.running(*faults):
        yield UpdateTarget(demo, site.gateway, site.devices, *new_firmware(demo))


def finish_job(demo: ServiceProcess, job: str) -> None:
    """Wait until a job is over; one that goes on is cancelled first."""

    def is_over() -> bool:
        told = demo.call("GET", f"/api/v1/jobs/{job}")
        if told["finishedAt"] is None and told["state"] != "CANCELING":
            demo.call("POST", f"/api/v1/jobs/{job}/cancel")
        return told["finishedAt"] is not None

    eventually(is_over, "the end of the job")


def _site(gateway: str, devices: int) -> dict[str, Any]:
    front = f"c0{uuid4().hex[:8]}"
    return {
        "gateway": gateway,
        "devices": [
            {"mac": f"{front}{2 * place:02x}", "model": MODEL, "x": 1 + place / 10, "y": 1}
            for place in range(devices)
        ],
    }


def _wait_for_devices(demo: ServiceProcess, gateway: str, devices: int) -> list[str]:
    """The devices, as soon as all are there and have told what they are."""
    path = f"/api/v1/devices?Gateway={gateway}&ModelNumber={MODEL}&Connected=true"
    eventually(lambda: len(demo.call("GET", path)["items"]) == devices, "the devices")
    return [each["id"] for each in demo.call("GET", path)["items"]]


def _wait_until_disconnected(demo: ServiceProcess, gateway: str) -> None:
    """Until it is known to be gone: what it said before has been taken by then, and brings nobody back."""
    eventually(lambda: not demo.call("GET", f"/api/v1/gateways/{gateway}")["connected"], "its end")


def new_version() -> str:
    """A version that nobody has used: each worker has a service of its own."""
    return "9.{}.{}".format(*divmod(next(_versions), 256))


def new_firmware(demo: ServiceProcess) -> tuple[str, str]:
    """Released firmware of a version that nobody has used; its id, and the version."""
    version = new_version()
    firmware = demo.upload(MODEL, version, build_test_package(MODEL, version))
    demo.call("POST", f"/api/v1/firmware/{firmware}/release")
    return firmware, version
