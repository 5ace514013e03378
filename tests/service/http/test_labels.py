"""Labels: creating, attaching, detaching and deleting them."""

from __future__ import annotations

import unicodedata
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pytest

from tests.row_tables import each_row

if TYPE_CHECKING:
    import httpx

    from tests.service.http.running_service import RunningService

ACUTE = "\N{COMBINING ACUTE ACCENT}"
DOOR = "\N{DOOR}"
TEXTS = ["plain", "two words", "a/b", "/", "//", "/a/", "a%2Fb", "a%2fb", "a%252Fb", "100%", "%", "%%", "%25"]
TEXTS += [
    "a+b",
    "+",
    "a.b",
    "...",
    ".hidden",
    "../x",
    "a;b,c=d&e?f#g",
    "a\\b",
    'say "hi"',
    "{label}",
    "<script>",
]
TEXTS += ["'; DROP TABLE label; --", "labels", "friendly-name", "null", "Gebäude 3/É", "会議室", "x" * 64]
TEXTS += ["\u0645\u0633\u062a\u0648", "\N{WOMAN}\N{ZERO WIDTH JOINER}\N{WRENCH}", DOOR * 64, "é" * 64]
MALFORMED = ["", " ", "\t", ".", "..", " . ", "x" * 65, DOOR * 65, "a\0b", "a\nb", "a\x7fb", "a\x9fb"]
UNKNOWN = "bmac-0123456789ab"


def _encode_label(label: str) -> str:
    """Percent-encode a label, including dots: clients resolve segments of only dots."""
    return quote(label, safe="").replace(".", "%2E")


def _build_path(device: str, label: str) -> str:
    return f"/api/v1/devices/{device}/labels/{_encode_label(label)}"


def _attach(service: RunningService, device: str, label: str) -> httpx.Response:
    return service.operator.put(_build_path(device, label))


def _detach(service: RunningService, device: str, label: str) -> httpx.Response:
    return service.operator.delete(_build_path(device, label))


def _load_labels(service: RunningService, device: str) -> list[str]:
    return list(service.viewer.get(f"/api/v1/devices/{device}").json()["labels"])


def _count_devices(service: RunningService) -> dict[str, int]:
    page = service.viewer.get("/api/v1/labels", params={"MaxResults": 1000}).json()
    assert page["nextToken"] is None
    assert all(list(item) == ["label", "deviceCount"] for item in page["items"])
    return {item["label"]: item["deviceCount"] for item in page["items"]}


def _list_actions(service: RunningService, target: str) -> list[str]:
    rows = service.admin.get("/api/v1/audit", params={"Target": target}).json()["items"]
    return [row["action"] for row in reversed(rows)]


@pytest.mark.rule("rest-6", "rest-7", "rest-58", "rest-59", "rest-61")
def test_a_new_label_is_listed_and_creating_it_again_changes_nothing(service: RunningService) -> None:
    label, device = service.new_name("Étage 3/north"), service.new_device()
    for count in (0, 1):
        response = service.operator.post("/api/v1/labels", json={"label": label})
        assert (response.status_code, response.headers["content-type"]) == (200, "application/json")
        assert response.json() == {"label": label, "deviceCount": count}
        assert list(response.json()) == ["label", "deviceCount"]
        _attach(service, device, label)
    assert _count_devices(service)[label] == 1
    assert _list_actions(service, label) == ["label.create"]


@pytest.mark.rule("rest-6", "rest-7", "rest-62", "rest-63", "rest-68")
@each_row("text", TEXTS)
def test_any_label_can_be_attached_and_detached_by_path(service: RunningService, text: str) -> None:
    device, other = service.new_device(), service.new_device()
    for each in (device, other):
        response = _attach(service, each, text)
        assert response.status_code == 200, response.text
        assert (response.json()["id"], response.json()["labels"], len(response.json())) == (each, [text], 10)
    listed = service.viewer.get("/api/v1/devices", params={"Label": text}).json()["items"]
    assert [item["id"] for item in listed] == [device, other]
    response = _detach(service, device, text)
    assert response.status_code == 200, response.text
    assert response.json() == {**listed[0], "labels": []}
    assert _load_labels(service, other) == [text]
    assert _count_devices(service)[text] == 1
    assert service.operator.delete(f"/api/v1/labels/{_encode_label(text)}").status_code == 204
    assert (_load_labels(service, other), text in _count_devices(service)) == ([], False)


@pytest.mark.rule("rest-68")
@each_row(
    ("encoded", "decoded"),
    [
        ("a%2fb", "a/b"),
        ("a%2Fb", "a/b"),
        ("a%252Fb", "a%2Fb"),
        ("a%25252Fb", "a%252Fb"),
        ("%2f", "/"),
        ("%2525", "%25"),
        ("%61%62", "ab"),
        ("a+b", "a+b"),
        ("a%20b", "a b"),
        ("%20a%20", "a"),
        ("a;b", "a;b"),
        ("e%CC%81", "é"),
        ("%C3%A9", "é"),
        ("%F0%9F%9A%AA", DOOR),
        ("%2E%2E%2Fx", "../x"),
    ],
)
def test_a_label_is_decoded_once_from_the_path(service: RunningService, encoded: str, decoded: str) -> None:
    device = service.new_device()
    response = service.operator.put(f"/api/v1/devices/{device}/labels/{encoded}")
    assert response.request.url.raw_path.decode().endswith(f"/labels/{encoded}")
    assert (response.status_code, response.json().get("labels")) == (200, [decoded])
    assert service.operator.delete(f"/api/v1/devices/{device}/labels/{encoded}").json()["labels"] == []


@pytest.mark.rule("rest-68")
def test_an_unencoded_slash_separates_segments(service: RunningService) -> None:
    device = service.new_device()
    for path in (f"/api/v1/devices/{device}/labels/a/b", f"/api/v1/devices/{device}%2Flabels/a"):
        response = service.operator.put(path)
        assert (response.status_code, response.json()["code"]) == (404, "not-found")
    assert _load_labels(service, device) == []


@pytest.mark.both_databases
@pytest.mark.rule("rest-67")
def test_unicode_forms_are_one_label_and_upper_and_lower_case_are_two(
    service: RunningService,
) -> None:
    device = service.new_device()
    composed = service.new_name("Café")
    apart = unicodedata.normalize("NFD", composed)
    assert apart != composed
    assert service.operator.post("/api/v1/labels", json={"label": apart}).json()["label"] == composed
    assert _attach(service, device, apart).json()["labels"] == [composed]
    assert _attach(service, device, composed).json()["labels"] == [composed]
    assert _attach(service, device, composed.lower()).json()["labels"] == [composed, composed.lower()]
    assert _detach(service, device, apart.lower()).json()["labels"] == [composed]
    assert _count_devices(service)[composed] == 1


@pytest.mark.rule("rest-66", "rest-67")
def test_a_label_is_trimmed_and_measured_in_composed_characters(service: RunningService) -> None:
    body = {"label": f" \t{f'e{ACUTE}' * 64}\n"}
    assert service.operator.post("/api/v1/labels", json=body).json()["label"] == "é" * 64


@pytest.mark.rule("rest-66")
@each_row("text", MALFORMED)
def test_a_malformed_label_is_refused(service: RunningService, text: str) -> None:
    before, device = _count_devices(service), service.new_device()
    response = service.operator.post("/api/v1/labels", json={"label": text})
    assert (response.status_code, [each["field"] for each in response.json()["errors"]]) == (400, ["label"])
    if text:
        attached, detached = _attach(service, device, text), _detach(service, device, text)
        assert attached.status_code == (404 if "\0" in text else 400), "a NUL is rejected with the path"
        assert (detached.status_code, detached.json()["code"]) == (404, "not-found")
        assert service.operator.delete(f"/api/v1/labels/{_encode_label(text)}").status_code == 404
    assert (_load_labels(service, device), _count_devices(service)) == ([], before)


@pytest.mark.rule("rest-66")
@each_row("encoded", ["%FF", "%ED%A0%80", "a%C3", "%C0%AF"])
def test_a_label_that_is_not_utf_8_is_refused(service: RunningService, encoded: str) -> None:
    path = f"/api/v1/devices/{service.new_device()}/labels/{encoded}"
    response = service.operator.put(path)
    assert (response.status_code, response.json()["instance"]) == (404, path)
    assert service.operator.delete(path).status_code == 404


@pytest.mark.rule("rest-58")
@each_row(
    ("body", "field"),
    [
        ({}, "label"),
        ({"label": None}, "label"),
        ({"label": 3}, "label"),
        ({"label": ["a"]}, "label"),
        ({"label": "a", "devices": []}, "devices"),
        ({"label": "a", "deviceIds": None}, "deviceIds"),
        ({"label": "a", "deviceIds": UNKNOWN}, "deviceIds"),
        ([], "body"),
        ("a", "body"),
    ],
)
def test_an_invalid_body_is_refused(service: RunningService, body: Any, field: str) -> None:
    response = service.operator.post("/api/v1/labels", json=body)
    assert response.status_code == 400, response.text
    assert [each["field"] for each in response.json()["errors"]] == [field]


@pytest.mark.both_databases
@pytest.mark.rule("rest-60")
def test_a_label_is_attached_to_all_listed_devices(service: RunningService) -> None:
    label, devices = service.new_name("label"), [service.new_device() for _ in range(3)]
    body = {"label": label, "deviceIds": [*devices, devices[0]]}
    for _ in range(2):
        assert service.operator.post("/api/v1/labels", json=body).json() == {"label": label, "deviceCount": 3}
    assert [_load_labels(service, device) for device in devices] == [[label]] * 3
    assert [_list_actions(service, device) for device in devices] == [["device.label"]] * 3
    assert _list_actions(service, label) == ["label.create"]


@pytest.mark.both_databases
@pytest.mark.rule("rest-60")
def test_an_unknown_device_prevents_the_whole_change(service: RunningService) -> None:
    label, device = service.new_name("label"), service.new_device()
    body = {"label": label, "deviceIds": [device, UNKNOWN]}
    response = service.operator.post("/api/v1/labels", json=body)
    assert (response.status_code, response.json()["code"]) == (404, "not-found")
    assert UNKNOWN in response.json()["detail"]
    assert (_load_labels(service, device), label in _count_devices(service)) == ([], False)
    assert (_list_actions(service, label), _list_actions(service, device)) == ([], [])


@pytest.mark.rule("rest-60")
def test_all_malformed_ids_of_a_body_are_reported(service: RunningService) -> None:
    label, device = service.new_name("label"), service.new_device()
    body = {"label": label, "deviceIds": [device[5:], device, device.upper(), ""]}
    response = service.operator.post("/api/v1/labels", json=body)
    assert response.status_code == 400
    fields = [each["field"] for each in response.json()["errors"]]
    assert fields == ["deviceIds[0]", "deviceIds[2]", "deviceIds[3]"]
    assert (_load_labels(service, device), label in _count_devices(service)) == ([], False)


@pytest.mark.rule("rest-60")
def test_at_most_a_thousand_devices_are_accepted(service: RunningService) -> None:
    ids = [f"bmac-{number:012x}" for number in range(1001)]
    for named, expected in ((ids[:1000], (404, "not-found")), (ids, (400, "invalid-request"))):
        body = {"label": service.new_name(), "deviceIds": named}
        response = service.operator.post("/api/v1/labels", json=body)
        assert (response.status_code, response.json()["code"]) == expected


@pytest.mark.rule("rest-62")
def test_a_label_is_not_created_for_an_unknown_device(service: RunningService) -> None:
    label = service.new_name("label")
    assert _attach(service, UNKNOWN, label).status_code == 404
    assert label not in _count_devices(service)
    assert _list_actions(service, label) == []


@pytest.mark.both_databases
@pytest.mark.rule("rest-62", "rest-63", "rest-64")
def test_a_label_that_is_not_attached_cannot_be_detached(service: RunningService) -> None:
    device, other, label = service.new_device(), service.new_device(), service.new_name("label")
    assert _detach(service, device, label).status_code == 404
    _attach(service, other, label)
    assert _detach(service, device, label).status_code == 404
    for _ in range(2):
        assert _attach(service, device, label).json()["labels"] == [label]
    assert _detach(service, device, label).status_code == 200
    response = _detach(service, device, label)
    assert (response.status_code, response.json()["code"]) == (404, "not-found")
    assert _count_devices(service)[label] == 1
    assert _list_actions(service, device) == ["device.label", "device.unlabel"]
    assert _list_actions(service, label) == ["label.create"]


@pytest.mark.both_databases
@pytest.mark.rule("rest-61", "rest-65")
def test_a_deleted_label_is_removed_from_all_devices(service: RunningService) -> None:
    label, kept = service.new_name("label"), service.new_name("kept")
    devices = [service.new_device() for _ in range(3)]
    for text in (label, kept):
        service.operator.post("/api/v1/labels", json={"label": text, "deviceIds": devices})
    response = service.operator.delete(f"/api/v1/labels/{label}")
    assert (response.status_code, response.content) == (204, b"")
    assert [_load_labels(service, device) for device in devices] == [[kept]] * 3
    assert (label in _count_devices(service), _count_devices(service)[kept]) == (False, 3)
    assert service.operator.delete(f"/api/v1/labels/{label}").status_code == 404
    rows = service.admin.get("/api/v1/audit", params={"Target": label, "Action": "label.remove"}).json()
    assert [row["detail"] for row in rows["items"]] == [{"devices": 3}]
    assert service.operator.post("/api/v1/labels", json={"label": label}).json()["deviceCount"] == 0


@pytest.mark.both_databases
@pytest.mark.rule("rest-33", "rest-61", "rest-16")
def test_labels_are_listed_in_alphabetical_order(service: RunningService) -> None:
    device, prefix = service.new_device(), service.new_name("o")
    texts = [f"{prefix}{each}" for each in ("B", "a", "\uffee", "é", "/", "Z", DOOR, "会")]
    for text in texts:
        _attach(service, device, text)
    assert _load_labels(service, device) == sorted(texts)
    listed: list[str] = []
    query: dict[str, Any] = {"MaxResults": 3}
    while "NextToken" not in query or query["NextToken"] is not None:
        page = service.viewer.get("/api/v1/labels", params=query).json()
        assert 0 < len(page["items"]) <= 3
        listed += [item["label"] for item in page["items"]]
        query["NextToken"] = page["nextToken"]
    assert listed == sorted(_count_devices(service))
    assert set(texts) <= set(listed)
