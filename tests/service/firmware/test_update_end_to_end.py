"""An update as it is in earnest: uploaded, released, asked for, fetched and running on a device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import httpx
import pytest

from meshfleet.protocol.firmware_image import build_package
from meshfleet.protocol.ids import ModelNumber, Version, to_device_id
from meshfleet.rest import FIRMWARE_PATH
from meshfleet.testing import running_fleet
from tests.eventually import eventually
from tests.firmware_images import bare_image
from tests.servers import NO_TRUSTED_AUTHORITIES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from meshfleet.testing import RunningFleet

PATIENCE = 60.0
"""Seconds until something must have happened; reached only when it never does."""

NEWER = "9.8.7"
NEWEST = "9.9.10"


@pytest.fixture(scope="module")
def fleet() -> Iterator[RunningFleet]:
    with running_fleet(devices=3, speed=300) as running:
        yield running


@pytest.fixture(scope="module")
def admin(fleet: RunningFleet) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=fleet.url, verify=NO_TRUSTED_AUTHORITIES, timeout=PATIENCE) as client:
        login = client.post("/api/v1/auth/login", json={"username": fleet.user, "password": fleet.password})
        client.headers["Authorization"] = f"Bearer {login.json()['authToken']}"
        yield client


def _device(admin: httpx.Client, device: str) -> dict[str, Any]:
    shown: dict[str, Any] = admin.get(f"/api/v1/devices/{device}").json()
    return shown


def _start(admin: httpx.Client, device: str, model: str, version: str = NEWER) -> None:
    value = {"modelNumber": int(model, 16), "version": version, "type": 0}
    body = {"operation": "write-decoded", "identifier": "start-firmware-update", "value": value}
    answer = admin.post(f"/api/v1/devices/{device}/requests", json=body)
    assert (answer.status_code, answer.json()["status"]) == (200, 0), answer.text


def _release(admin: httpx.Client, name: str, image: bytes, **fields: str) -> None:
    made = admin.post(FIRMWARE_PATH, data=fields, files={"image": (name, image)})
    assert made.status_code == 201, made.text
    assert admin.post(f"{FIRMWARE_PATH}/{made.json()['id']}/release").status_code == 200


def _state(admin: httpx.Client, device: str) -> str:
    body = {"operation": "read-decoded", "identifier": "firmware-update-state"}
    answer = admin.post(f"/api/v1/devices/{device}/requests", json=body)
    state: str = answer.json()["value"]["state"]
    return state


@pytest.mark.rule("firmware-20", "firmware-30", "firmware-21")
def test_a_device_gets_the_firmware_that_was_uploaded(fleet: RunningFleet, admin: httpx.Client) -> None:
    device = to_device_id(fleet.gateways[0].devices[0])
    eventually(lambda: _device(admin, device)["modelNumber"] != "0000")
    model = _device(admin, device)["modelNumber"]
    assert _device(admin, device)["firmwareVersion"] != NEWER

    _start(admin, device, model)  # before there is any image
    eventually(lambda: _state(admin, device) == "failed")

    package = build_package(b"firmware" * 500, model_number=ModelNumber(model), version=Version.parse(NEWER))
    _release(admin, "new firmware.zip", package, modelNumber=model, version=NEWER)
    _start(admin, device, model)
    eventually(lambda: _device(admin, device)["firmwareVersion"] == NEWER)
    figures = admin.get("/metrics").text
    assert 'meshfleet_firmware_questions_total{outcome="answered"} 1.0' in figures
    assert f"meshfleet_image_bytes_total {float(len(package))}" in figures

    _release(admin, "app.bin", bare_image(), modelNumber=model, version=NEWEST, bare="true")
    _start(admin, device, model, NEWEST)
    eventually(lambda: _device(admin, device)["firmwareVersion"] == NEWEST)
