"""Which devices a job is for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from meshfleet.protocol.ids import Version
from tests.row_tables import each_row

if TYPE_CHECKING:
    from tests.service.jobs.job_environment import JobEnvironment

pytestmark = pytest.mark.both_databases

ODD = [
    "",
    "x",
    "bmac-XYZ",
    "BMAC-c0ffee000001",
    "bmac-c0ffee0000011",
    "c0ffee000001",
    "\0",
    "bmac-c0ffee00000\n",
]


def faults(shop: JobEnvironment, chosen: Any) -> list[tuple[str, str]]:
    """What is wrong with targets."""
    answer = shop.post_job(shop.firmware(), chosen)
    assert answer.status_code == 400, answer.text
    assert answer.json()["code"] in {"invalid-request", "malformed-payload"}
    return [(each["field"], each["message"]) for each in answer.json()["errors"]]


def meant(shop: JobEnvironment, chosen: dict[str, Any]) -> list[str]:
    """Whom targets mean, of all models."""
    answer = shop.post_job(shop.firmware(), chosen)
    assert answer.status_code == 201, answer.text
    return sorted(shop.executions(answer.json()["id"]))


@pytest.mark.rule("rest-116")
def test_devices_are_meant_by_their_ids_each_once(shop: JobEnvironment) -> None:
    devices = shop.devices(4)
    assert meant(shop, {"deviceIds": [*devices[:3], devices[0], devices[0]]}) == devices[:3]


@pytest.mark.rule("rest-116")
def test_devices_are_meant_by_any_of_their_labels(shop: JobEnvironment) -> None:
    devices = shop.devices(6)
    one, other = shop.label(devices[:3]), shop.label(devices[2:5])
    assert meant(shop, {"labels": [one]}) == devices[:3]
    assert meant(shop, {"labels": [one, other]}) == devices[:5]


@pytest.mark.rule("rest-116", "rest-34", "rest-35")
def test_devices_are_meant_by_the_filters_of_the_list(shop: JobEnvironment) -> None:
    gateway = shop.service.new_mac()
    here = shop.devices(2, gateway=gateway, connected=True, hardware=Version(1, 0, 0))
    there = shop.devices(2, "3.4.1-beta.2", gateway=gateway, connected=False, hardware=Version(2, 0, 0))
    shop.devices(2, connected=True)
    label = shop.label([here[0], there[0]])
    for chosen, expected in (
        ({"ModelNumber": shop.model, "Gateway": gateway}, [*here, *there]),
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
        assert meant(shop, {"filter": chosen}) == sorted(expected), chosen


@pytest.mark.rule("rest-116")
def test_the_parts_are_united(shop: JobEnvironment) -> None:
    gateway = shop.service.new_mac()
    devices = shop.devices(3) + shop.devices(2, gateway=gateway)
    label = shop.label(devices[1:2])
    chosen = {
        "deviceIds": devices[:2],
        "labels": [label],
        "filter": {"Gateway": gateway},
    }
    assert meant(shop, chosen) == sorted([devices[0], devices[1], *devices[3:]])


@pytest.mark.rule("rest-117")
def test_every_device_is_meant_by_who_says_so(shop: JobEnvironment) -> None:
    shop.devices(2)
    listed: list[str] = []
    token: str | None = None
    while token is not None or not listed:
        query: dict[str, Any] = {"MaxResults": 1000} | ({} if token is None else {"NextToken": token})
        page = shop.service.viewer.get("/api/v1/devices", params=query).json()
        listed += [each["id"] for each in page["items"]]
        token = page["nextToken"]
    assert meant(shop, {"all": True}) == sorted(listed)


@pytest.mark.rule("rest-117")
@each_row("chosen", [{}, {"Label": []}, {"FriendlyName": ""}])
def test_a_filter_that_lets_everybody_through_is_refused(
    shop: JobEnvironment, chosen: dict[str, Any]
) -> None:
    shop.device()
    assert faults(shop, {"filter": chosen}) == [
        ("targets.filter", 'must not be empty; use "all": true to select every device')
    ]


@each_row(
    "chosen",
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
def test_targets_that_select_no_device_are_refused(shop: JobEnvironment, chosen: dict[str, Any]) -> None:
    shop.device()
    assert faults(shop, chosen) == [("targets", "selects no devices")]


def test_a_label_without_devices_selects_none(shop: JobEnvironment) -> None:
    assert faults(shop, {"labels": [shop.label([])]}) == [("targets", "selects no devices")]


def test_unknown_and_malformed_ids_are_named_the_first_twenty(shop: JobEnvironment) -> None:
    known = shop.device()
    assert faults(shop, {"deviceIds": [known, "bmac-00000000dead", known, "bmac-00000000beef"]}) == [
        ("targets.deviceIds[1]", "device not found"),
        ("targets.deviceIds[3]", "device not found"),
    ]
    unknown = [f"bmac-{number:012x}" for number in range(50)]
    assert [field for field, _ in faults(shop, {"deviceIds": unknown})] == [
        f"targets.deviceIds[{place}]" for place in range(20)
    ]
    odd = faults(shop, {"deviceIds": [known, *ODD]})
    assert [field for field, _ in odd] == [f"targets.deviceIds[{place}]" for place in range(1, len(ODD) + 1)]
    assert len(faults(shop, {"deviceIds": ["x"] * 1000})) == 20


def test_unknown_and_malformed_labels_are_named(shop: JobEnvironment) -> None:
    known = shop.label([shop.device()])
    found = faults(shop, {"labels": [known, "no-such-label", "", "\0", "x" * 65]})
    assert [field for field, _ in found] == [f"targets.labels[{place}]" for place in range(1, 5)]
    assert found[0][1] == "label not found"


@each_row(
    ("chosen", "field"),
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
def test_a_wrong_filter_is_named_also_beside_a_right_one(
    shop: JobEnvironment, chosen: dict[str, Any], field: str
) -> None:
    for more in ({}, {"Connected": True} if "Connected" not in chosen else {}):
        assert [each for each, _ in faults(shop, {"filter": chosen | more})] == [f"targets.filter.{field}"]


@each_row(
    ("chosen", "field"),
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
def test_targets_of_another_shape_are_refused_by_name(shop: JobEnvironment, chosen: Any, field: str) -> None:
    assert [each for each, _ in faults(shop, chosen)] == [field]
