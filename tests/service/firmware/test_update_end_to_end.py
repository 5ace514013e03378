"""End-to-end test of an update: upload, release, image request, download, and start on a device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from meshfleet.protocol.firmware_image import build_package
from meshfleet.protocol.ids import ModelNumber, Version, to_device_id
from meshfleet.rest.firmware import FIRMWARE_PATH
from meshfleet.testing import running_fleet
from tests.cli.programs import open_client
from tests.eventually import eventually
from tests.firmware_images import bare_image

if TYPE_CHECKING:
    from collections.abc import Iterator

    import httpx

    from meshfleet.testing import RunningFleet

TIMEOUT_S = 60.0
"""Seconds after which an expected change counts as missing."""

NEWER = "9.8.7"
NEWEST = "9.9.10"


@pytest.fixture(scope="module")
def fleet() -> Iterator[RunningFleet]:
    with running_fleet(devices=3, speed=300) as running:
        yield running


@pytest.fixture(scope="module")
def admin(fleet: RunningFleet) -> Iterator[httpx.Client]:
    with open_client(fleet.url, fleet.password, fleet.user) as client:
        yield client


def _get_device(admin: httpx.Client, device: str) -> dict[str, Any]:
    body: dict[str, Any] = admin.get(f"/api/v1/devices/{device}").json()
    return body


def _start_update(admin: httpx.Client, device: str, model: str, version: str = NEWER) -> None:
    value = {"modelNumber": int(model, 16), "version": version, "type": 0}
    body = {"operation": "write-decoded", "identifier": "start-firmware-update", "value": value}
    response = admin.post(f"/api/v1/devices/{device}/requests", json=body)
    assert (response.status_code, response.json()["status"]) == (200, 0), response.text


def _upload_and_release(admin: httpx.Client, name: str, image: bytes, **fields: str) -> None:
    created = admin.post(FIRMWARE_PATH, data=fields, files={"image": (name, image)})
    assert created.status_code == 201, created.text
    assert admin.post(f"{FIRMWARE_PATH}/{created.json()['id']}/release").status_code == 200


def _read_update_state(admin: httpx.Client, device: str) -> str:
    body = {"operation": "read-decoded", "identifier": "firmware-update-state"}
    response = admin.post(f"/api/v1/devices/{device}/requests", json=body)
    state: str = response.json()["value"]["state"]
    return state


@pytest.mark.rule("firmware-20", "firmware-30", "firmware-21")
def test_a_device_runs_the_uploaded_firmware_after_an_update(
    fleet: RunningFleet, admin: httpx.Client
) -> None:
    device = to_device_id(fleet.gateways[0].devices[0])
    eventually(lambda: _get_device(admin, device)["modelNumber"] != "0000")
    model = _get_device(admin, device)["modelNumber"]
    assert _get_device(admin, device)["firmwareVersion"] != NEWER

    _start_update(admin, device, model)  # no image exists yet
    eventually(lambda: _read_update_state(admin, device) == "failed")

    package = build_package(b"firmware" * 500, model_number=ModelNumber(model), version=Version.parse(NEWER))
    _upload_and_release(admin, "new firmware.zip", package, modelNumber=model, version=NEWER)
    _start_update(admin, device, model)
    eventually(lambda: _get_device(admin, device)["firmwareVersion"] == NEWER)
    metrics = admin.get("/metrics").text
    assert 'meshfleet_firmware_questions_total{outcome="answered"} 1.0' in metrics
    assert f"meshfleet_image_bytes_total {float(len(package))}" in metrics

    _upload_and_release(admin, "app.bin", bare_image(), modelNumber=model, version=NEWEST, bare="true")
    _start_update(admin, device, model, NEWEST)
    eventually(lambda: _get_device(admin, device)["firmwareVersion"] == NEWEST)
