"""Filters of the device list: single, combined, and invalid ones."""

from __future__ import annotations

import unicodedata
from itertools import combinations
from typing import TYPE_CHECKING, Any

import pytest

from meshfleet.protocol.ids import Mac, ModelNumber, Version
from meshfleet.service.devices import registry
from tests.row_tables import each_row

if TYPE_CHECKING:
    from collections.abc import Sequence

    import httpx

    from tests.service.http.running_service import RunningService

    Query = Sequence[tuple[str, str]]

FIRST_GATEWAY, SECOND_GATEWAY = Mac("aa00000000f1"), Mac("aa00000000f2")

MATCHING_VALUES = {
    "Label": "red",
    "Connected": "true",
    "ModelNumber": "000F",
    "FirmwareVersion": "2.4.1",
    "HardwareVersion": "1.7",
    "FriendlyName": "north",
    "Gateway": FIRST_GATEWAY,
}
"""Filter values that the devices with the field match."""

MALFORMED = {
    "Label": ["", " ", ".", "..", "x" * 65, "a\0", "a\nb"],
    "Connected": ["", "null", "yes", "no", "on", "t", "2", "-1", " true", "truefalse", "None"],
    "ModelNumber": [
        "",
        "15",
        "00F",
        "0000F",
        "0x0F",
        "00 F",
        "zzzz",
        "\uff10\uff10\uff10\uff11",
        "000F,0018",
    ],
    "FirmwareVersion": [
        "",
        "2",
        "2.",
        "2.4.1.0",
        "v2.4.1",
        "2.4.1-beta",
        "2.4.1-beta.0",
        "2.4.1-beta.256",
        "-1.0.0",
    ],
    "HardwareVersion": ["", "x", "1..0", "1.0-beta.1", "1,0", "999999.0"],
    "FriendlyName": [""],
    "Gateway": ["", "aa", "bmac-", "aa:00:00:00:00:f1", "aa00000000fg", "aa00000000f1 "],
    "Ids": ["", "aa00000000f1", "bmac-AA00000000F1", "bmac-aa00000000f1,bmac-aa00000000f2", "*"],
    "Sort": ["", "ID", "--id", "+id", "name", "id,-id", "friendlyname", "labels"],
}


def _get_devices(service: RunningService, query: Query) -> httpx.Response:
    return service.viewer.get("/api/v1/devices", params=list(query))


def _list_ids(service: RunningService, query: Query) -> list[str]:
    response = _get_devices(service, [*query, ("MaxResults", "1000")])
    assert response.status_code == 200, response.text
    return [item["id"] for item in response.json()["items"]]


def _create_device(service: RunningService, matched: frozenset[str]) -> str:
    """Create a device that matches these filters and no others."""
    device = service.new_device(
        connected="Connected" in matched,
        model=ModelNumber("000F" if "ModelNumber" in matched else "0018"),
        firmware=Version(2, 4, 1) if "FirmwareVersion" in matched else Version(2, 4, 10),
        hardware=Version.parse("1.7" if "HardwareVersion" in matched else "1.70"),
        gateway=FIRST_GATEWAY if "Gateway" in matched else SECOND_GATEWAY,
        name="Up north" if "FriendlyName" in matched else "nort hern",
    )
    if "Label" in matched:
        service.operator.put(f"/api/v1/devices/{device}/labels/red")
    return device


@pytest.fixture(scope="module")
def fleet(service: RunningService) -> dict[str, frozenset[str]]:
    """Create devices that match all filters, all but one, only one, or none; map ids to matched filters."""
    all_names = frozenset(MATCHING_VALUES)
    combinations_of_names = [
        all_names,
        frozenset[str](),
        *(all_names - {name} for name in MATCHING_VALUES),
        *(frozenset({name}) for name in MATCHING_VALUES),
    ]
    return {_create_device(service, matched): matched for matched in combinations_of_names}


@pytest.mark.both_databases
@pytest.mark.rule("rest-34", "rest-35")
def test_a_device_is_listed_only_if_it_matches_all_filters(
    service: RunningService, fleet: dict[str, frozenset[str]]
) -> None:
    for number in (0, 1, 2, len(MATCHING_VALUES) - 1, len(MATCHING_VALUES)):
        for names in combinations(MATCHING_VALUES, number):
            listed = _list_ids(service, [(name, MATCHING_VALUES[name]) for name in names])
            expected = sorted(device for device, matched in fleet.items() if matched >= set(names))
            assert [each for each in listed if each in fleet] == expected, names


@pytest.mark.both_databases
@pytest.mark.rule("rest-34", "rest-35")
def test_ids_combine_with_the_other_filters(
    service: RunningService, fleet: dict[str, frozenset[str]]
) -> None:
    selected = sorted(fleet)[3:9]
    ids = [("Ids", each) for each in reversed(selected)]
    assert _list_ids(service, ids) == selected
    assert _list_ids(service, [*ids, *ids, ("Ids", "bmac-0123456789ab")]) == selected
    for name, value in MATCHING_VALUES.items():
        expected = [each for each in selected if name in fleet[each]]
        assert _list_ids(service, [(name, value), *ids]) == expected, name


@pytest.mark.both_databases
@pytest.mark.rule("rest-34")
def test_thousands_of_ids_are_accepted(service: RunningService) -> None:
    device = service.new_device()
    ids = [("Ids", f"bmac-{number:012x}") for number in range(2500)]
    assert _list_ids(service, [*ids, ("Ids", device)]) == [device]


@pytest.mark.rule("rest-3", "rest-34")
def test_filter_names_are_accepted_in_any_case(
    service: RunningService, fleet: dict[str, frozenset[str]]
) -> None:
    (device,) = [device for device, matched in fleet.items() if len(matched) == len(MATCHING_VALUES)]
    for change_case in (str.lower, str.upper, str.swapcase, str.title):
        query = [(change_case(name), value) for name, value in MATCHING_VALUES.items()] + [
            (change_case("Ids"), device)
        ]
        assert _list_ids(service, query) == [device]


@pytest.mark.rule("rest-34", "rest-76")
@each_row(
    ("name", "value", "is_match"),
    [
        ("Connected", "TRUE", True),
        ("Connected", "True", True),
        ("Connected", "false", False),
        ("ModelNumber", "000f", True),
        ("FirmwareVersion", "02.04.01", True),
        ("FirmwareVersion", "2.4.1-beta.1", False),
        ("FirmwareVersion", "2.4", False),
        ("HardwareVersion", "1.7.0", True),
        ("HardwareVersion", "1.70", False),
        ("FriendlyName", "UP NORTH", True),
        ("Gateway", FIRST_GATEWAY.upper(), True),
        ("Gateway", f"bmac-{FIRST_GATEWAY}", True),
        ("Gateway", f"BMAC-{FIRST_GATEWAY.upper()}", True),
        ("Gateway", SECOND_GATEWAY, False),
        ("Gateway", "ffffffffffff", False),
        ("Label", " red ", True),
        ("Label", "Red", False),
        ("Label", "re", False),
        ("Label", "red,red", False),
        ("Label", "unknown label", False),
    ],
)
def test_values_are_accepted_in_several_forms(
    service: RunningService, name: str, value: str, *, is_match: bool
) -> None:
    device = _create_device(service, frozenset(MATCHING_VALUES))
    assert _list_ids(service, [("Ids", device), (name, value)]) == [device] * is_match
    assert (device in _list_ids(service, [(name, value)])) is is_match


@pytest.mark.both_databases
@pytest.mark.rule("rest-34", "rest-49")
def test_a_version_matches_its_betas_and_a_beta_only_itself(service: RunningService) -> None:
    gateway = service.new_mac()
    devices = [service.new_device(gateway=gateway, firmware=Version(3, 1, 0, beta)) for beta in (0, 1, 12)]
    for text, found in [
        ("3.1.0", devices),
        ("3.1", devices),
        ("3.1.0-beta.1", devices[1:2]),
        ("3.1.0-beta.2", []),
    ]:
        assert _list_ids(service, [("Gateway", gateway), ("FirmwareVersion", text)]) == found, text


@pytest.mark.both_databases
@pytest.mark.rule("rest-34", "rest-35", "rest-67")
def test_a_device_must_have_all_of_several_labels(service: RunningService) -> None:
    accented = service.new_name("Gebäude 3/É")
    label, third = service.new_name("ß%2F&="), service.new_name("third")
    one, both = service.new_device(), service.new_device()
    service.operator.post("/api/v1/labels", json={"label": accented, "deviceIds": [one, both]})
    service.operator.post("/api/v1/labels", json={"label": label, "deviceIds": [both]})
    service.operator.post("/api/v1/labels", json={"label": third})
    decomposed = unicodedata.normalize("NFD", accented)
    assert _list_ids(service, [("Label", accented)]) == [one, both]
    assert _list_ids(service, [("Label", decomposed), ("label", accented), ("LABEL", label)]) == [both]
    assert _list_ids(service, [("Label", accented), ("Label", third)]) == []
    assert _list_ids(service, [("Label", accented), ("Label", "unknown label")]) == []


@pytest.mark.both_databases
@pytest.mark.rule("rest-34")
def test_a_filter_of_very_many_labels_causes_no_server_error(service: RunningService) -> None:
    device = service.new_device()
    texts = [f"many {number}" for number in range(1100)]
    service.database.write_now(registry.attach_labels, [(text, Mac(device[5:])) for text in texts], at=1)
    response = _get_devices(service, [("Label", text) for text in texts])
    assert response.status_code in {200, 400}, response.text
    if response.status_code == 200:
        assert [item["id"] for item in response.json()["items"]] == [device]


@pytest.mark.rule("rest-16")
@each_row("query", ["Label=unheard+of", "Gateway=0123456789ab", "Ids=bmac-0123456789ab"])
def test_a_filter_without_matches_returns_an_empty_page(service: RunningService, query: str) -> None:
    response = service.viewer.get(f"/api/v1/devices?{query}")
    assert (response.status_code, response.json()) == (200, {"items": [], "nextToken": None})


@pytest.mark.rule("rest-34", "rest-37")
@each_row(("name", "value"), [(name, each) for name, values in MALFORMED.items() for each in values])
def test_a_malformed_value_is_refused_with_the_name_of_its_filter(
    service: RunningService, name: str, value: str
) -> None:
    response = _get_devices(service, [(name.lower(), value)])
    assert (response.status_code, response.headers["content-type"]) == (400, "application/problem+json")
    assert response.json()["code"] == "invalid-request"
    assert [each["field"] for each in response.json()["errors"]] == [name]


@pytest.mark.rule("rest-34")
@pytest.mark.parametrize(
    "names",
    [
        [
            "Label",
            "Label",
            "ModelNumber",
            "FirmwareVersion",
            "HardwareVersion",
            "FriendlyName",
            "Gateway",
            "Ids",
            "Ids",
        ],
        ["Connected", "ModelNumber"],
    ],
)
def test_all_faults_are_reported_together(service: RunningService, names: list[str]) -> None:
    response = _get_devices(
        service, [(name, ".") for name in names if name != "FriendlyName"] + _blank_names(names)
    )
    assert response.status_code == 400
    assert sorted(each["field"] for each in response.json()["errors"]) == sorted(names)


def _blank_names(names: list[str]) -> list[tuple[str, str]]:
    """Return an empty FriendlyName, the only invalid one."""
    return [(name, "") for name in names if name == "FriendlyName"]


@pytest.mark.rule("rest-4")
@each_row("name", ["Labels", "Conected", "Id", "Model", "Filter", "", "friendly_name", "_", "Ids[]"])
def test_a_misspelled_filter_is_refused(service: RunningService, name: str) -> None:
    response = _get_devices(service, [(name, "x")])
    assert response.status_code == 400
    assert [each["field"] for each in response.json()["errors"]] == [name]


@pytest.mark.rule("rest-34")
@each_row("name", [*sorted(set(MATCHING_VALUES) - {"Label"}), "Sort", "MaxResults", "Include", "NextToken"])
def test_a_second_value_of_a_single_parameter_is_refused(service: RunningService, name: str) -> None:
    more: dict[str, Any] = {"Sort": "id", "MaxResults": "5", "Include": "live", "NextToken": "x"}
    value = str((MATCHING_VALUES | more)[name])
    response = _get_devices(service, [(name, value), (name.lower(), value)])
    assert response.status_code == 400
    assert [each["field"] for each in response.json()["errors"]] == [name]
