"""Concurrent changes of the same objects: no 5xx responses, and every change is recorded once."""

from __future__ import annotations

import hashlib
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import Barrier
from typing import TYPE_CHECKING, Any, TypeVar

import pytest

from meshfleet.db.tables import gateway as gateway_table
from meshfleet.protocol.ids import Mac, mac_to_int
from meshfleet.service.devices.model import DeviceObservation

if TYPE_CHECKING:
    from collections.abc import Callable

    import httpx

    from tests.service.http.running_service import RunningService

pytestmark = pytest.mark.both_databases

Result = TypeVar("Result")

races = pytest.mark.parametrize("rounds", [5, pytest.param(30, marks=pytest.mark.part("variants"))])
"""Rounds of a race: five nearly always find a failure that occurs every second time; rarer ones need more."""


def _run_concurrently(*actions: Callable[[], Result]) -> list[Result]:
    """Run all actions at the same moment, each in a thread of its own."""
    start = Barrier(len(actions))

    def run(action: Callable[[], Result]) -> Result:
        start.wait()
        return action()

    with ThreadPoolExecutor(len(actions)) as threads:
        return list(threads.map(run, actions))


def _run_for_statuses(*actions: Callable[[], httpx.Response]) -> list[int]:
    return [response.status_code for response in _run_concurrently(*actions)]


def _list_changes(service: RunningService, target: str) -> list[dict[str, Any]]:
    """Return the recorded changes of a target, the oldest first."""
    page = service.admin.get("/api/v1/audit", params={"Target": target, "MaxResults": 1000}).json()
    return list(reversed(page["items"]))


def _count_actions(service: RunningService, target: str) -> Counter[str]:
    return Counter(row["action"] for row in _list_changes(service, target))


def _load_labels(service: RunningService, device: str) -> list[str]:
    return list(service.viewer.get(f"/api/v1/devices/{device}").json()["labels"])


def _count_devices_by_label(service: RunningService) -> dict[str, int]:
    page = service.viewer.get("/api/v1/labels", params={"MaxResults": 1000}).json()
    return {item["label"]: item["deviceCount"] for item in page["items"]}


@pytest.mark.rule("rest-43", "auth-26")
@races
def test_concurrent_renames_of_one_device_are_serialized(service: RunningService, rounds: int) -> None:
    device = service.new_device()
    path = f"/api/v1/devices/{device}/friendly-name"

    def rename_often(client_name: str) -> None:
        for number in range(rounds):
            name = f"{client_name} {number:02}"  # no name is part of another, so that a search finds only one
            response = service.operator.put(path, json={"name": name})
            assert (response.status_code, response.json()["friendlyName"]) == (200, name)

    _run_concurrently(*(partial(rename_often, client_name) for client_name in ("Ann", "Bob", "Cid")))
    rows = [row["detail"] for row in _list_changes(service, device)]
    assert len(rows) == 3 * rounds
    assert [row["before"] for row in rows] == [f"Device {device[-4:]}", *(row["after"] for row in rows[:-1])]
    assert service.viewer.get(f"/api/v1/devices/{device}").json()["friendlyName"] == rows[-1]["after"]
    for row in rows:
        found = service.viewer.get(
            "/api/v1/devices", params={"FriendlyName": row["after"], "Ids": device}
        ).json()
        assert bool(found["items"]) is (row["after"] == rows[-1]["after"]), "found by its last name only"


@pytest.mark.rule("rest-62", "rest-63", "rest-64", "auth-26")
@races
def test_a_label_attached_and_detached_concurrently_is_consistent(
    service: RunningService, rounds: int
) -> None:
    device, label = service.new_device(), service.new_name("label")
    path = f"/api/v1/devices/{device}/labels/{label}"
    seen = Counter[tuple[str, int]]()
    for _ in range(rounds):
        methods = ["PUT", "DELETE", "PUT", "DELETE"]
        statuses = _run_for_statuses(*(partial(service.operator.request, method, path) for method in methods))
        seen.update(zip(methods, statuses, strict=True))
    assert set(seen) <= {("PUT", 200), ("DELETE", 200), ("DELETE", 404)}
    actions = _count_actions(service, device)
    assert actions["device.unlabel"] == seen["DELETE", 200]
    assert actions["device.label"] - actions["device.unlabel"] == len(_load_labels(service, device))
    assert _count_devices_by_label(service)[label] == len(_load_labels(service, device))
    assert _count_actions(service, label) == {"label.create": 1}


@pytest.mark.rule("rest-62", "rest-65", "auth-26")
@races
def test_a_label_removed_while_it_is_attached_is_complete_or_gone(
    service: RunningService, rounds: int
) -> None:
    devices, label = [service.new_device() for _ in range(3)], service.new_name("label")
    seen = Counter[int]()
    for _ in range(rounds):
        attachments = [
            partial(service.operator.put, f"/api/v1/devices/{device}/labels/{label}") for device in devices
        ]
        removals = [partial(service.operator.delete, f"/api/v1/labels/{label}")] * 2
        statuses = _run_for_statuses(*attachments, *removals)
        assert set(statuses[:3]) <= {200, 409}
        assert set(statuses[3:]) <= {204, 404}
        seen.update(statuses[3:])
        labeled = [device for device in devices if label in _load_labels(service, device)]
        assert _count_devices_by_label(service).get(label, 0) == len(labeled)
    actions = _count_actions(service, label)
    assert actions["label.remove"] == seen[204]
    assert actions["label.create"] - actions["label.remove"] == (label in _count_devices_by_label(service))


@pytest.mark.rule("rest-59", "rest-60", "auth-26")
@races
def test_a_label_created_concurrently_is_created_once(service: RunningService, rounds: int) -> None:
    devices = [service.new_device() for _ in range(6)]
    for _ in range(rounds):
        label = service.new_name("label")
        bodies = [{"label": label, "deviceIds": devices[::step]} for step in (1, -1, 2, -2)]
        responses = _run_concurrently(
            *(partial(service.operator.post, "/api/v1/labels", json=body) for body in bodies)
        )
        assert [response.status_code for response in responses] == [200] * 4
        assert _count_devices_by_label(service)[label] == 6
        assert _count_actions(service, label) == {"label.create": 1}
    assert [_count_actions(service, device) for device in devices] == [{"device.label": rounds}] * 6


@pytest.mark.rule("rest-70", "rest-72", "auth-26")
@races
def test_only_one_of_several_concurrent_claims_succeeds(service: RunningService, rounds: int) -> None:
    for _ in range(rounds):
        mac = service.new_mac()
        bodies = [{"mac": mac, "friendlyName": f"of {number}"} for number in range(5)]
        responses = _run_concurrently(
            *(partial(service.admin.post, "/api/v1/gateways", json=body) for body in bodies)
        )
        assert sorted(response.status_code for response in responses) == [201, 409, 409, 409, 409]
        (winner,) = [number for number, response in enumerate(responses) if response.status_code == 201]
        assert service.viewer.get(f"/api/v1/gateways/{mac}").json()["friendlyName"] == f"of {winner}"
        assert _load_stored_password(service, mac) == _hash_password(responses[winner])
        assert _count_actions(service, f"bmac-{mac}") == {"gateway.claim": 1}


@pytest.mark.rule("rest-73", "rest-74", "auth-26")
def test_of_concurrently_rotated_credentials_one_is_valid(service: RunningService) -> None:
    mac = service.new_mac()
    service.admin.post("/api/v1/gateways", json={"mac": mac})
    responses = _run_concurrently(*[partial(service.admin.post, f"/api/v1/gateways/{mac}/credentials")] * 5)
    assert [response.status_code for response in responses] == [200] * 5
    assert _load_stored_password(service, mac) in [_hash_password(response) for response in responses]
    assert _count_actions(service, f"bmac-{mac}") == {"gateway.claim": 1, "gateway.rotate": 5}
    assert sorted(_run_for_statuses(*[partial(service.admin.delete, f"/api/v1/gateways/{mac}")] * 3)) == [
        204,
        404,
        404,
    ]


@pytest.mark.rule("rest-40", "rest-69", "auth-26")
@races
def test_a_device_deleted_while_it_is_claimed_stays_a_claimed_gateway(
    service: RunningService, rounds: int
) -> None:
    for _ in range(2 * rounds):
        device = service.new_device()
        claimed, *deletions = _run_for_statuses(
            partial(service.admin.post, "/api/v1/gateways", json={"mac": device}),
            *[partial(service.admin.delete, f"/api/v1/devices/{device}")] * 2,
        )
        assert claimed == 201
        assert set(deletions) <= {204, 404, 409}
        assert service.viewer.get(f"/api/v1/gateways/{device}").status_code == 200
        assert service.viewer.get(f"/api/v1/devices/{device}").status_code == 200
        assert _count_actions(service, device)["device.forget"] == deletions.count(204)


@pytest.mark.rule("rest-40", "rest-41", "auth-26")
@races
def test_a_device_deleted_while_it_is_changed_stays_deleted(service: RunningService, rounds: int) -> None:
    for _ in range(rounds):
        device, label = service.new_device(), service.new_name("label")
        path = f"/api/v1/devices/{device}"
        statuses = _run_for_statuses(
            partial(service.admin.delete, path),
            partial(service.admin.delete, path),
            partial(service.operator.put, f"{path}/friendly-name", json={"name": "Phoenix"}),
            partial(service.operator.put, f"{path}/labels/{label}"),
            partial(service.operator.post, "/api/v1/labels", json={"label": label, "deviceIds": [device]}),
        )
        assert sorted(statuses[:2]) == [204, 404]
        assert set(statuses[2:]) <= {200, 404}
        assert service.viewer.get(path).status_code == 404
        assert _count_devices_by_label(service).get(label, 0) == 0
        actions = _count_actions(service, device)
        assert (actions["device.forget"], actions["device.rename"]) == (1, statuses[2] == 200)
        assert actions["device.label"] == (200 in statuses[3:])


@pytest.mark.rule("rest-41")
@races
def test_a_device_observed_while_it_is_deleted_stays_consistent(service: RunningService, rounds: int) -> None:
    for _ in range(rounds):
        device = service.new_device()
        mac = Mac(device[5:])

        def observe(mac: Mac = mac) -> None:
            service.observe(
                DeviceObservation(device=mac, at=service.clock(), connected=True, rssi=-50, battery=90)
            )

        def delete(device: str = device) -> None:
            assert service.admin.delete(f"/api/v1/devices/{device}").status_code == 204

        _run_concurrently(observe, delete, observe)
        observe()
        detail = service.viewer.get(f"/api/v1/devices/{device}").json()
        assert (detail["connectivity"]["connected"], detail["live"]["rssi"]) == (True, -50)


@pytest.mark.rule("rest-21")
def test_paging_during_concurrent_changes_returns_every_device_once(
    service: RunningService,
) -> None:
    gateway, at = service.new_mac(), service.clock()
    macs = [Mac(f"{0xE00000000000 + 2 * number:012x}") for number in range(60)]
    service.observe(*(DeviceObservation(device=mac, at=at, gateway=gateway) for mac in macs))
    devices = [f"bmac-{mac}" for mac in macs]

    def read_pages() -> None:
        query: dict[str, Any] = {"Gateway": gateway, "MaxResults": 4}
        listed: list[str] = []
        while True:
            response = service.viewer.get("/api/v1/devices", params=query)
            assert response.status_code == 200
            listed += [item["id"] for item in response.json()["items"]]
            if response.json()["nextToken"] is None:
                break
            query["NextToken"] = response.json()["nextToken"]
        assert listed == sorted(set(listed))
        assert set(devices[:50]) <= set(listed), "only the last ten may be missing"

    def rename_and_label() -> None:
        for number, device in enumerate(devices[::3]):
            body = {"name": f"changed {number}"}
            assert (
                service.operator.put(f"/api/v1/devices/{device}/friendly-name", json=body).status_code == 200
            )
            assert service.operator.put(f"/api/v1/devices/{device}/labels/{number % 3}").status_code == 200

    def add_and_delete() -> None:
        for mac in macs[:50:3]:
            new = Mac(f"{int(mac, 16) + 1:012x}")
            service.observe(DeviceObservation(device=new, at=at, gateway=gateway))
            assert service.admin.delete(f"/api/v1/devices/bmac-{new}").status_code == 204

    _run_concurrently(read_pages, read_pages, rename_and_label, add_and_delete)


def _hash_password(response: httpx.Response) -> bytes:
    return hashlib.sha256(str(response.json()["password"]).encode()).digest()


def _load_stored_password(service: RunningService, mac: Mac) -> bytes:
    query = gateway_table.select().where(gateway_table.c.device == mac_to_int(mac))
    return bytes(service.database.read_now(lambda connection: connection.execute(query).one()).password)
