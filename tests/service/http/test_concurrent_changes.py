"""Several clients who change the same things at once: nobody gets a 5xx, and every change is told once."""

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
"""How often a race is run: five rounds find nearly always what goes wrong one time in two; rarer things need
more."""


def _at_once(*deeds: Callable[[], Result]) -> list[Result]:
    """Do all of them at the same moment, each in a thread of its own."""
    start = Barrier(len(deeds))

    def do(deed: Callable[[], Result]) -> Result:
        start.wait()
        return deed()

    with ThreadPoolExecutor(len(deeds)) as threads:
        return list(threads.map(do, deeds))


def _statuses(*deeds: Callable[[], httpx.Response]) -> list[int]:
    return [answer.status_code for answer in _at_once(*deeds)]


def _audit(service: RunningService, target: str) -> list[dict[str, Any]]:
    """The changes of a thing, the first one first."""
    page = service.admin.get("/api/v1/audit", params={"Target": target, "MaxResults": 1000}).json()
    return list(reversed(page["items"]))


def _actions(service: RunningService, target: str) -> Counter[str]:
    return Counter(row["action"] for row in _audit(service, target))


def _labels(service: RunningService, device: str) -> list[str]:
    return list(service.viewer.get(f"/api/v1/devices/{device}").json()["labels"])


def _counts(service: RunningService) -> dict[str, int]:
    page = service.viewer.get("/api/v1/labels", params={"MaxResults": 1000}).json()
    return {item["label"]: item["deviceCount"] for item in page["items"]}


@pytest.mark.rule("rest-43", "auth-26")
@races
def test_renames_of_one_device_follow_each_other(service: RunningService, rounds: int) -> None:
    device = service.new_device()
    path = f"/api/v1/devices/{device}/friendly-name"

    def rename_often(who: str) -> None:
        for number in range(rounds):
            name = f"{who} {number:02}"  # no name is a part of another one, by which it would be found
            answer = service.operator.put(path, json={"name": name})
            assert (answer.status_code, answer.json()["friendlyName"]) == (200, name)

    _at_once(*(partial(rename_often, who) for who in ("Ann", "Bob", "Cid")))
    rows = [row["detail"] for row in _audit(service, device)]
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
def test_a_label_put_on_and_taken_off_at_once_is_on_or_off(service: RunningService, rounds: int) -> None:
    device, label = service.new_device(), service.new_name("label")
    path = f"/api/v1/devices/{device}/labels/{label}"
    seen = Counter[tuple[str, int]]()
    for _ in range(rounds):
        methods = ["PUT", "DELETE", "PUT", "DELETE"]
        statuses = _statuses(*(partial(service.operator.request, method, path) for method in methods))
        seen.update(zip(methods, statuses, strict=True))
    assert set(seen) <= {("PUT", 200), ("DELETE", 200), ("DELETE", 404)}
    actions = _actions(service, device)
    assert actions["device.unlabel"] == seen["DELETE", 200]
    assert actions["device.label"] - actions["device.unlabel"] == len(_labels(service, device))
    assert _counts(service)[label] == len(_labels(service, device))
    assert _actions(service, label) == {"label.create": 1}


@pytest.mark.rule("rest-62", "rest-65", "auth-26")
@races
def test_a_label_removed_while_it_is_put_on_devices_is_whole_or_gone(
    service: RunningService, rounds: int
) -> None:
    devices, label = [service.new_device() for _ in range(3)], service.new_name("label")
    seen = Counter[int]()
    for _ in range(rounds):
        putting = [
            partial(service.operator.put, f"/api/v1/devices/{device}/labels/{label}") for device in devices
        ]
        removing = [partial(service.operator.delete, f"/api/v1/labels/{label}")] * 2
        statuses = _statuses(*putting, *removing)
        assert set(statuses[:3]) <= {200, 409}
        assert set(statuses[3:]) <= {204, 404}
        seen.update(statuses[3:])
        having = [device for device in devices if label in _labels(service, device)]
        assert _counts(service).get(label, 0) == len(having)
    actions = _actions(service, label)
    assert actions["label.remove"] == seen[204]
    assert actions["label.create"] - actions["label.remove"] == (label in _counts(service))


@pytest.mark.rule("rest-59", "rest-60", "auth-26")
@races
def test_a_new_label_that_all_make_at_once_is_made_once(service: RunningService, rounds: int) -> None:
    devices = [service.new_device() for _ in range(6)]
    for _ in range(rounds):
        label = service.new_name("label")
        bodies = [{"label": label, "deviceIds": devices[::step]} for step in (1, -1, 2, -2)]
        answers = _at_once(*(partial(service.operator.post, "/api/v1/labels", json=body) for body in bodies))
        assert [answer.status_code for answer in answers] == [200] * 4
        assert _counts(service)[label] == 6
        assert _actions(service, label) == {"label.create": 1}
    assert [_actions(service, device) for device in devices] == [{"device.label": rounds}] * 6


@pytest.mark.rule("rest-70", "rest-72", "auth-26")
@races
def test_of_all_who_claim_a_gateway_at_once_one_gets_it(service: RunningService, rounds: int) -> None:
    for _ in range(rounds):
        mac = service.new_mac()
        bodies = [{"mac": mac, "friendlyName": f"of {number}"} for number in range(5)]
        answers = _at_once(*(partial(service.admin.post, "/api/v1/gateways", json=body) for body in bodies))
        assert sorted(answer.status_code for answer in answers) == [201, 409, 409, 409, 409]
        (winner,) = [number for number, answer in enumerate(answers) if answer.status_code == 201]
        assert service.viewer.get(f"/api/v1/gateways/{mac}").json()["friendlyName"] == f"of {winner}"
        assert _stored_password(service, mac) == _digest(answers[winner])
        assert _actions(service, f"bmac-{mac}") == {"gateway.claim": 1}


@pytest.mark.rule("rest-73", "rest-74", "auth-26")
def test_credentials_asked_for_at_once_are_all_told_and_one_of_them_holds(service: RunningService) -> None:
    mac = service.new_mac()
    service.admin.post("/api/v1/gateways", json={"mac": mac})
    answers = _at_once(*[partial(service.admin.post, f"/api/v1/gateways/{mac}/credentials")] * 5)
    assert [answer.status_code for answer in answers] == [200] * 5
    assert _stored_password(service, mac) in [_digest(answer) for answer in answers]
    assert _actions(service, f"bmac-{mac}") == {"gateway.claim": 1, "gateway.rotate": 5}
    assert sorted(_statuses(*[partial(service.admin.delete, f"/api/v1/gateways/{mac}")] * 3)) == [
        204,
        404,
        404,
    ]


@pytest.mark.rule("rest-40", "rest-69", "auth-26")
@races
def test_a_device_forgotten_while_it_is_claimed_is_one_or_the_other(
    service: RunningService, rounds: int
) -> None:
    for _ in range(2 * rounds):
        device = service.new_device()
        claimed, *forgotten = _statuses(
            partial(service.admin.post, "/api/v1/gateways", json={"mac": device}),
            *[partial(service.admin.delete, f"/api/v1/devices/{device}")] * 2,
        )
        assert claimed == 201
        assert set(forgotten) <= {204, 404, 409}
        assert service.viewer.get(f"/api/v1/gateways/{device}").status_code == 200
        assert service.viewer.get(f"/api/v1/devices/{device}").status_code == 200
        assert _actions(service, device)["device.forget"] == forgotten.count(204)


@pytest.mark.rule("rest-40", "rest-41", "auth-26")
@races
def test_a_device_forgotten_while_others_change_it_is_gone_after_it(
    service: RunningService, rounds: int
) -> None:
    for _ in range(rounds):
        device, label = service.new_device(), service.new_name("label")
        path = f"/api/v1/devices/{device}"
        statuses = _statuses(
            partial(service.admin.delete, path),
            partial(service.admin.delete, path),
            partial(service.operator.put, f"{path}/friendly-name", json={"name": "Phoenix"}),
            partial(service.operator.put, f"{path}/labels/{label}"),
            partial(service.operator.post, "/api/v1/labels", json={"label": label, "deviceIds": [device]}),
        )
        assert sorted(statuses[:2]) == [204, 404]
        assert set(statuses[2:]) <= {200, 404}
        assert service.viewer.get(path).status_code == 404
        assert _counts(service).get(label, 0) == 0
        actions = _actions(service, device)
        assert (actions["device.forget"], actions["device.rename"]) == (1, statuses[2] == 200)
        assert actions["device.label"] == (200 in statuses[3:])


@pytest.mark.rule("rest-41")
@races
def test_a_device_heard_while_it_is_forgotten_does_no_harm(service: RunningService, rounds: int) -> None:
    for _ in range(rounds):
        device = service.new_device()
        mac = Mac(device[5:])

        def hear(mac: Mac = mac) -> None:
            service.observe(
                DeviceObservation(device=mac, at=service.clock(), connected=True, rssi=-50, battery=90)
            )

        def forget(device: str = device) -> None:
            assert service.admin.delete(f"/api/v1/devices/{device}").status_code == 204

        _at_once(hear, forget, hear)
        hear()
        shown = service.viewer.get(f"/api/v1/devices/{device}").json()
        assert (shown["connectivity"]["connected"], shown["live"]["rssi"]) == (True, -50)


@pytest.mark.rule("rest-21")
def test_who_pages_while_others_rename_label_add_and_forget_sees_every_device_once(
    service: RunningService,
) -> None:
    gateway, at = service.new_mac(), service.clock()
    macs = [Mac(f"{0xE00000000000 + 2 * number:012x}") for number in range(60)]
    service.observe(*(DeviceObservation(device=mac, at=at, gateway=gateway) for mac in macs))
    devices = [f"bmac-{mac}" for mac in macs]

    def page() -> None:
        query: dict[str, Any] = {"Gateway": gateway, "MaxResults": 4}
        walked: list[str] = []
        while True:
            answer = service.viewer.get("/api/v1/devices", params=query)
            assert answer.status_code == 200
            walked += [item["id"] for item in answer.json()["items"]]
            if answer.json()["nextToken"] is None:
                break
            query["NextToken"] = answer.json()["nextToken"]
        assert walked == sorted(set(walked))
        assert set(devices[:50]) <= set(walked), "of the last ten each may be gone"

    def change() -> None:
        for number, device in enumerate(devices[::3]):
            body = {"name": f"changed {number}"}
            assert (
                service.operator.put(f"/api/v1/devices/{device}/friendly-name", json=body).status_code == 200
            )
            assert service.operator.put(f"/api/v1/devices/{device}/labels/{number % 3}").status_code == 200

    def come_and_go() -> None:
        for mac in macs[:50:3]:
            new = Mac(f"{int(mac, 16) + 1:012x}")
            service.observe(DeviceObservation(device=new, at=at, gateway=gateway))
            assert service.admin.delete(f"/api/v1/devices/bmac-{new}").status_code == 204

    _at_once(page, page, change, come_and_go)


def _digest(answer: httpx.Response) -> bytes:
    return hashlib.sha256(str(answer.json()["password"]).encode()).digest()


def _stored_password(service: RunningService, mac: Mac) -> bytes:
    query = gateway_table.select().where(gateway_table.c.device == mac_to_int(mac))
    return bytes(service.database.read_now(lambda connection: connection.execute(query).one()).password)
