"""Emulated sites whose devices a test updates; removed at its end, except for its jobs."""

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
"""Simulation speed: more than one heartbeat per second, and an image takes a second or two."""

_versions = count()


class UpdateTarget(NamedTuple):
    """Devices behind a gateway, and firmware that they do not run yet."""

    service: ServiceProcess
    gateway: str
    devices: list[str]
    firmware: str
    version: str

    def create_job(self, **order: Any) -> dict[str, Any]:
        """Create a job for all devices."""
        body = {
            "name": f"Site {uuid4().hex[:8]}",
            "firmwareId": self.firmware,
            "targets": {"deviceIds": self.devices},
        }
        made: dict[str, Any] = self.service.call("POST", "/api/v1/jobs", body | order)
        return made


class EmulatedSite:
    """Emulated gateway with devices of one model near it."""

    def __init__(self, demo: ServiceProcess, folder: Path, mac: str, devices: int) -> None:
        folder.mkdir(exist_ok=True)
        site_file = folder / "site.json"
        site_file.write_text(json.dumps(_build_site(mac, devices)))
        account = demo.claim(mac)
        broker = f"mqtt://{account.user}:{account.password}@127.0.0.1:{demo.mqtt['mqtt'].port}"
        self._options = ("--broker", broker, "--mac", mac, "--site", str(site_file), "--speed", SPEED)
        self._demo = demo
        self._count = devices
        self.gateway = mac
        self.devices: list[str] = []

    @contextmanager
    def running(self, *faults: str) -> Iterator[None]:
        """Run the emulator until the block ends; `faults` as `meshfleet gateway` accepts them."""
        fault_options = [option for fault in faults for option in ("--fault", fault)]
        with Program("gateway", *self._options, *fault_options):
            self.devices = _wait_for_devices(self._demo, self.gateway, self._count)
            yield


@contextmanager
def new_site(demo: ServiceProcess, folder: Path, *, devices: int) -> Iterator[EmulatedSite]:
    """Yield a new site and delete it at the end. It must be stopped by then, or it would reappear."""
    with new_mac(demo) as mac:
        try:
            yield EmulatedSite(demo, folder, mac, devices)
        finally:
            _wait_until_disconnected(demo, mac)
            devices_behind = demo.call("GET", f"/api/v1/devices?Gateway={mac}")["items"]
            demo.release(mac)
            for device in devices_behind:
                if device["id"] != f"bmac-{mac}":
                    demo.call("DELETE", f"/api/v1/devices/{device['id']}")


@contextmanager
def update_target(
    demo: ServiceProcess, folder: Path, *faults: str, devices: int = 3
) -> Iterator[UpdateTarget]:
    """Run a site and yield it with released firmware for its devices."""
    with new_site(demo, folder, devices=devices) as site, site.running(*faults):
        yield UpdateTarget(demo, site.gateway, site.devices, *new_firmware(demo))


def finish_job(demo: ServiceProcess, job: str) -> None:
    """Wait until a job has finished; cancel it first if it is running."""

    def is_finished() -> bool:
        job_state = demo.call("GET", f"/api/v1/jobs/{job}")
        if job_state["finishedAt"] is None and job_state["state"] != "CANCELING":
            demo.call("POST", f"/api/v1/jobs/{job}/cancel")
        return job_state["finishedAt"] is not None

    eventually(is_finished, "the end of the job")


def _build_site(gateway: str, devices: int) -> dict[str, Any]:
    mac_prefix = f"c0{uuid4().hex[:8]}"
    return {
        "gateway": gateway,
        "devices": [
            {"mac": f"{mac_prefix}{2 * index:02x}", "model": MODEL, "x": 1 + index / 10, "y": 1}
            for index in range(devices)
        ],
    }


def _wait_for_devices(demo: ServiceProcess, gateway: str, devices: int) -> list[str]:
    """Return the ids of the devices once all are connected and have reported their model."""
    path = f"/api/v1/devices?Gateway={gateway}&ModelNumber={MODEL}&Connected=true"
    eventually(lambda: len(demo.call("GET", path)["items"]) == devices, "the devices")
    return [each["id"] for each in demo.call("GET", path)["items"]]


def _wait_until_disconnected(demo: ServiceProcess, gateway: str) -> None:
    """Wait until the gateway is disconnected: its last reports are stored then and recreate no devices."""
    eventually(
        lambda: not demo.call("GET", f"/api/v1/gateways/{gateway}")["connected"], "the gateway to disconnect"
    )


def new_version() -> str:
    """Return an unused version: each worker has its own service."""
    return "9.{}.{}".format(*divmod(next(_versions), 256))


def new_firmware(demo: ServiceProcess) -> tuple[str, str]:
    """Upload and release firmware of an unused version; return its id and version."""
    version = new_version()
    firmware = demo.upload(MODEL, version, build_test_package(MODEL, version))
    demo.call("POST", f"/api/v1/firmware/{firmware}/release")
    return firmware, version
