"""Tests of the targets of a job."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from meshfleet.protocol.ids import Version
from tests.row_tables import each_row

if TYPE_CHECKING:
    from tests.service.jobs.job_environment import JobEnvironment

pytestmark = pytest.mark.both_databases

MALFORMED_IDS = [
    "",
    "x",
    "bmac-XYZ",
    "BMAC-c0ffee000001",
    "bmac-c0ffee0000011",
    "c0ffee000001",
    "\0",
    "bmac-c0ffee00000\n",
]


def faults(env: JobEnvironment, targets: Any) -> list[tuple[str, str]]:
    """Return the faults of rejected targets."""
    response = env.post_job(env.firmware(), targets)
    assert response.status_code == 400, response.text
    assert response.json()["code"] in {"invalid-request", "malformed-payload"}
    return [(each["field"], each["message"]) for each in response.json()["errors"]]


def list_targeted_devices(env: JobEnvironment, targets: dict[str, Any]) -> list[str]:
    """Return the devices that targets select, of all models."""
    response = env.post_job(env.firmware(), targets)
    assert response.status_code == 201, response.text
    return sorted(env.executions(response.json()["id"]))


@pytest.mark.rule("rest-116")
def test_devices_are_selected_by_their_ids_each_once(env: JobEnvironment) -> None:
    devices = env.devices(4)
    assert list_targeted_devices(env, {"deviceIds": [*devices[:3], devices[0], devices[0]]}) == devices[:3]


@pytest.mark.rule("rest-116")
def test_devices_are_selected_by_any_of_their_labels(env: JobEnvironment) -> None:
    devices = env.devices(6)
    one, other = env.label(devices[:3]), env.label(devices[2:5])
    assert list_targeted_devices(env, {"labels": [one]}) == devices[:3]
    assert list_targeted_devices(env, {"labels": [one, other]}) == devices[:5]


@pytest.mark.rule("rest-116", "rest-34", "rest-35")
def test_devices_are_selected_by_the_filters_of_the_device_list(env: JobEnvironment) -> None:
    gateway = env.service.new_mac()
    here = env.devices(2, gateway=gateway, connected=True, hardware=Version(1, 0, 0))
    there = env.devices(2, "3.4.1-beta.2", gateway=gateway, connected=False, hardware=Version(2, 0, 0))
    env.devices(2, connected=True)
    label = env.label([here[0], there[0]])
    for targets, expected in (
        ({"ModelNumber": env.model, "Gateway": gateway}, [*here, *there]),
        ({"Gateway": f"bmac-{gateway}", "Connected": True}, here),
        ({"Gateway": gateway, "Connected": False}, there),
        ({"Gateway": gateway, "FirmwareVersion": "3.4.1"}, [*here, *there]),
        ({"Gateway": gateway, "FirmwareVersion": "3.4.1-beta.2"}, there),
        ({"Gateway": gateway, "HardwareVersion": "2.0"}, there),
        ({"Label": label}, [here[0], there[0]]),
        ({"Label": [label], "Connected": True}, [here[0]]),
        ({"Ids": [here[1], there[1], "bmac-000000000000"]}, [here[1], there[1]]),
        ({"Gateway": gateway, "FriendlyName": here[0][-4:]}, [here[0]]),
    ):
        assert list_targeted_devices(env, {"filter": targets}) == sorted(expected), targets


@pytest.mark.rule("rest-116")
def test_the_parts_of_targets_are_united(env: JobEnvironment) -> None:
    gateway = env.service.new_mac()
    devices = env.devices(3) + env.devices(2, gateway=gateway)
    label = env.label(devices[1:2])
    targets = {
        "deviceIds": devices[:2],
        "labels": [label],
        "filter": {"Gateway": gateway},
    }
    assert list_targeted_devices(env, targets) == sorted([devices[0], devices[1], *devices[3:]])


@pytest.mark.rule("rest-117")
def test_all_true_selects_every_device(env: JobEnvironment) -> None:
    env.devices(2)
    listed: list[str] = []
    token: str | None = None
    while token is not None or not listed:
        query: dict[str, Any] = {"MaxResults": 1000} | ({} if token is None else {"NextToken": token})
        page = env.service.viewer.get("/api/v1/devices", params=query).json()
        listed += [each["id"] for each in page["items"]]
        token = page["nextToken"]
    assert list_targeted_devices(env, {"all": True}) == sorted(listed)


@pytest.mark.rule("rest-117")
@each_row("targets", [{}, {"Label": []}, {"FriendlyName": ""}])
def test_an_empty_filter_is_rejected(env: JobEnvironment, targets: dict[str, Any]) -> None:
    env.device()
    assert faults(env, {"filter": targets}) == [
        ("targets.filter", 'must not be empty; use "all": true to select every device')
    ]


@each_row(
    "targets",
    [
        {},
        {"deviceIds": []},
        {"labels": []},
        {"all": False},
        {"filter": {"Ids": []}},
        {"filter": {"Label": "no-such-label"}},
        {"filter": {"ModelNumber": "7FFE"}},
    ],
)
def test_targets_that_select_no_device_are_rejected(env: JobEnvironment, targets: dict[str, Any]) -> None:
    env.device()
    assert faults(env, targets) == [("targets", "selects no devices")]


def test_a_label_without_devices_selects_none(env: JobEnvironment) -> None:
    assert faults(env, {"labels": [env.label([])]}) == [("targets", "selects no devices")]


def test_the_first_twenty_unknown_or_malformed_ids_are_reported(env: JobEnvironment) -> None:
    known = env.device()
    assert faults(env, {"deviceIds": [known, "bmac-00000000dead", known, "bmac-00000000beef"]}) == [
        ("targets.deviceIds[1]", "device not found"),
        ("targets.deviceIds[3]", "device not found"),
    ]
    unknown = [f"bmac-{number:012x}" for number in range(50)]
    assert [field for field, _ in faults(env, {"deviceIds": unknown})] == [
        f"targets.deviceIds[{index}]" for index in range(20)
    ]
    malformed = faults(env, {"deviceIds": [known, *MALFORMED_IDS]})
    assert [field for field, _ in malformed] == [
        f"targets.deviceIds[{index}]" for index in range(1, len(MALFORMED_IDS) + 1)
    ]
    assert len(faults(env, {"deviceIds": ["x"] * 1000})) == 20


def test_unknown_and_malformed_labels_are_reported(env: JobEnvironment) -> None:
    known = env.label([env.device()])
    found = faults(env, {"labels": [known, "no-such-label", "", "\0", "x" * 65]})
    assert [field for field, _ in found] == [f"targets.labels[{index}]" for index in range(1, 5)]
    assert found[0][1] == "label not found"


@each_row(
    ("targets", "field"),
    [
        ({"ModelNumber": "18"}, "ModelNumber"),
        ({"ModelNumber": ""}, "ModelNumber"),
        ({"FirmwareVersion": "x"}, "FirmwareVersion"),
        ({"HardwareVersion": ""}, "HardwareVersion"),
        ({"Gateway": "here"}, "Gateway"),
        ({"Ids": ["x"]}, "Ids"),
        ({"Label": ["\u0001"]}, "Label"),
        ({"Label": [f"label-{number}" for number in range(21)]}, "Label"),
        ({"FriendlyName": "\0"}, "FriendlyName"),
    ],
)
def test_an_invalid_filter_is_reported_even_beside_a_valid_one(
    env: JobEnvironment, targets: dict[str, Any], field: str
) -> None:
    for extra in ({}, {"Connected": True} if "Connected" not in targets else {}):
        assert [each for each, _ in faults(env, {"filter": targets | extra})] == [f"targets.filter.{field}"]


@each_row(
    ("targets", "field"),
    [
        ({"deviceIds": "all"}, "targets.deviceIds"),
        ({"deviceIds": [1]}, "targets.deviceIds[0]"),
        ({"labels": None}, "targets.labels"),
        ({"filter": []}, "targets.filter"),
        ({"filter": {"Connected": "true"}}, "targets.filter.Connected"),
        ({"all": 1}, "targets.all"),
        ([], "targets"),
        (None, "targets"),
    ],
)
def test_targets_of_a_wrong_type_are_reported_by_name(env: JobEnvironment, targets: Any, field: str) -> None:
    assert [each for each, _ in faults(env, targets)] == [field]
