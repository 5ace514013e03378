"""Labels: making them, putting them on devices, and taking them off."""

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


def _encoded(label: str) -> str:
    """Dots too: what is nothing but dots, clients take for a step up."""
    return quote(label, safe="").replace(".", "%2E")


def _path(device: str, label: str) -> str:
    return f"/api/v1/devices/{device}/labels/{_encoded(label)}"


def _attach(service: RunningService, device: str, label: str) -> httpx.Response:
    return service.operator.put(_path(device, label))


def _detach(service: RunningService, device: str, label: str) -> httpx.Response:
    return service.operator.delete(_path(device, label))


def _labels(service: RunningService, device: str) -> list[str]:
    return list(service.viewer.get(f"/api/v1/devices/{device}").json()["labels"])


def _counts(service: RunningService) -> dict[str, int]:
    page = service.viewer.get("/api/v1/labels", params={"MaxResults": 1000}).json()
    assert page["nextToken"] is None
    assert all(list(item) == ["label", "deviceCount"] for item in page["items"])
    return {item["label"]: item["deviceCount"] for item in page["items"]}


def _audited(service: RunningService, target: str) -> list[str]:
    rows = service.admin.get("/api/v1/audit", params={"Target": target}).json()["items"]
    return [row["action"] for row in reversed(rows)]


@pytest.mark.rule("rest-6", "rest-7", "rest-58", "rest-59", "rest-61")
def test_a_new_label_is_in_the_list_and_again_changes_nothing(service: RunningService) -> None:
    label, device = service.new_name("Étage 3/north"), service.new_device()
    for count in (0, 1):
        answer = service.operator.post("/api/v1/labels", json={"label": label})
        assert (answer.status_code, answer.headers["content-type"]) == (200, "application/json")
        assert answer.json() == {"label": label, "deviceCount": count}
        assert list(answer.json()) == ["label", "deviceCount"]
        _attach(service, device, label)
    assert _counts(service)[label] == 1
    assert _audited(service, label) == ["label.create"]


@pytest.mark.rule("rest-6", "rest-7", "rest-62", "rest-63", "rest-68")
@each_row("text", TEXTS)
def test_any_label_can_be_put_on_a_device_and_taken_off_in_a_path(service: RunningService, text: str) -> None:
    device, other = service.new_device(), service.new_device()
    for each in (device, other):
        answer = _attach(service, each, text)
        assert answer.status_code == 200, answer.text
        assert (answer.json()["id"], answer.json()["labels"], len(answer.json())) == (each, [text], 10)
    listed = service.viewer.get("/api/v1/devices", params={"Label": text}).json()["items"]
    assert [item["id"] for item in listed] == [device, other]
    answer = _detach(service, device, text)
    assert answer.status_code == 200, answer.text
    assert answer.json() == {**listed[0], "labels": []}
    assert _labels(service, other) == [text]
    assert _counts(service)[text] == 1
    assert service.operator.delete(f"/api/v1/labels/{_encoded(text)}").status_code == 204
    assert (_labels(service, other), text in _counts(service)) == ([], False)


@pytest.mark.rule("rest-68")
@each_row(
    ("written", "meant"),
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
def test_a_label_is_read_from_the_path_as_it_was_sent(
    service: RunningService, written: str, meant: str
) -> None:
    device = service.new_device()
    answer = service.operator.put(f"/api/v1/devices/{device}/labels/{written}")
    assert answer.request.url.raw_path.decode().endswith(f"/labels/{written}")
    assert (answer.status_code, answer.json().get("labels")) == (200, [meant])
    assert service.operator.delete(f"/api/v1/devices/{device}/labels/{written}").json()["labels"] == []


@pytest.mark.rule("rest-68")
def test_a_slash_that_is_not_encoded_parts_the_path(service: RunningService) -> None:
    device = service.new_device()
    for path in (f"/api/v1/devices/{device}/labels/a/b", f"/api/v1/devices/{device}%2Flabels/a"):
        answer = service.operator.put(path)
        assert (answer.status_code, answer.json()["code"]) == (404, "not-found")
    assert _labels(service, device) == []


@pytest.mark.both_databases
@pytest.mark.rule("rest-67")
def test_two_spellings_of_the_same_letters_are_one_label_and_two_cases_are_two(
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
    assert _counts(service)[composed] == 1


@pytest.mark.rule("rest-66", "rest-67")
def test_a_label_is_trimmed_and_counted_in_characters_after_it_is_composed(service: RunningService) -> None:
    body = {"label": f" \t{f'e{ACUTE}' * 64}\n"}
    assert service.operator.post("/api/v1/labels", json=body).json()["label"] == "é" * 64


@pytest.mark.rule("rest-66")
@each_row("text", MALFORMED)
def test_a_label_that_cannot_be_is_refused(service: RunningService, text: str) -> None:
    before, device = _counts(service), service.new_device()
    answer = service.operator.post("/api/v1/labels", json={"label": text})
    assert (answer.status_code, [each["field"] for each in answer.json()["errors"]]) == (400, ["label"])
    if text:
        put, taken = _attach(service, device, text), _detach(service, device, text)
        assert put.status_code == (404 if "\0" in text else 400), "NUL stops at the door"
        assert (taken.status_code, taken.json()["code"]) == (404, "not-found")
        assert service.operator.delete(f"/api/v1/labels/{_encoded(text)}").status_code == 404
    assert (_labels(service, device), _counts(service)) == ([], before)


@pytest.mark.rule("rest-66")
@each_row("written", ["%FF", "%ED%A0%80", "a%C3", "%C0%AF"])
def test_what_is_not_utf_8_is_no_label(service: RunningService, written: str) -> None:
    path = f"/api/v1/devices/{service.new_device()}/labels/{written}"
    answer = service.operator.put(path)
    assert (answer.status_code, answer.json()["instance"]) == (404, path)
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
def test_a_body_that_is_no_label_is_refused(service: RunningService, body: Any, field: str) -> None:
    answer = service.operator.post("/api/v1/labels", json=body)
    assert answer.status_code == 400, answer.text
    assert [each["field"] for each in answer.json()["errors"]] == [field]


@pytest.mark.both_databases
@pytest.mark.rule("rest-60")
def test_a_label_is_put_on_all_devices_at_once(service: RunningService) -> None:
    label, devices = service.new_name("label"), [service.new_device() for _ in range(3)]
    body = {"label": label, "deviceIds": [*devices, devices[0]]}
    for _ in range(2):
        assert service.operator.post("/api/v1/labels", json=body).json() == {"label": label, "deviceCount": 3}
    assert [_labels(service, device) for device in devices] == [[label]] * 3
    assert [_audited(service, device) for device in devices] == [["device.label"]] * 3
    assert _audited(service, label) == ["label.create"]


@pytest.mark.both_databases
@pytest.mark.rule("rest-60")
def test_if_one_device_is_unknown_nothing_happens_at_all(service: RunningService) -> None:
    label, device = service.new_name("label"), service.new_device()
    body = {"label": label, "deviceIds": [device, UNKNOWN]}
    answer = service.operator.post("/api/v1/labels", json=body)
    assert (answer.status_code, answer.json()["code"]) == (404, "not-found")
    assert UNKNOWN in answer.json()["detail"]
    assert (_labels(service, device), label in _counts(service)) == ([], False)
    assert (_audited(service, label), _audited(service, device)) == ([], [])


@pytest.mark.rule("rest-60")
def test_malformed_ids_in_a_body_are_all_told(service: RunningService) -> None:
    label, device = service.new_name("label"), service.new_device()
    body = {"label": label, "deviceIds": [device[5:], device, device.upper(), ""]}
    answer = service.operator.post("/api/v1/labels", json=body)
    assert answer.status_code == 400
    fields = [each["field"] for each in answer.json()["errors"]]
    assert fields == ["deviceIds[0]", "deviceIds[2]", "deviceIds[3]"]
    assert (_labels(service, device), label in _counts(service)) == ([], False)


@pytest.mark.rule("rest-60")
def test_a_thousand_devices_can_be_named_and_no_more(service: RunningService) -> None:
    ids = [f"bmac-{number:012x}" for number in range(1001)]
    for named, expected in ((ids[:1000], (404, "not-found")), (ids, (400, "invalid-request"))):
        body = {"label": service.new_name(), "deviceIds": named}
        answer = service.operator.post("/api/v1/labels", json=body)
        assert (answer.status_code, answer.json()["code"]) == expected


@pytest.mark.rule("rest-62")
def test_a_label_is_not_made_for_an_unknown_device(service: RunningService) -> None:
    label = service.new_name("label")
    assert _attach(service, UNKNOWN, label).status_code == 404
    assert label not in _counts(service)
    assert _audited(service, label) == []


@pytest.mark.both_databases
@pytest.mark.rule("rest-62", "rest-63", "rest-64")
def test_a_label_that_is_not_attached_cannot_be_taken_off(service: RunningService) -> None:
    device, other, label = service.new_device(), service.new_device(), service.new_name("label")
    assert _detach(service, device, label).status_code == 404
    _attach(service, other, label)
    assert _detach(service, device, label).status_code == 404
    for _ in range(2):
        assert _attach(service, device, label).json()["labels"] == [label]
    assert _detach(service, device, label).status_code == 200
    answer = _detach(service, device, label)
    assert (answer.status_code, answer.json()["code"]) == (404, "not-found")
    assert _counts(service)[label] == 1
    assert _audited(service, device) == ["device.label", "device.unlabel"]
    assert _audited(service, label) == ["label.create"]


@pytest.mark.both_databases
@pytest.mark.rule("rest-61", "rest-65")
def test_a_removed_label_is_gone_from_everything_at_once(service: RunningService) -> None:
    label, kept = service.new_name("label"), service.new_name("kept")
    devices = [service.new_device() for _ in range(3)]
    for text in (label, kept):
        service.operator.post("/api/v1/labels", json={"label": text, "deviceIds": devices})
    answer = service.operator.delete(f"/api/v1/labels/{label}")
    assert (answer.status_code, answer.content) == (204, b"")
    assert [_labels(service, device) for device in devices] == [[kept]] * 3
    assert (label in _counts(service), _counts(service)[kept]) == (False, 3)
    assert service.operator.delete(f"/api/v1/labels/{label}").status_code == 404
    rows = service.admin.get("/api/v1/audit", params={"Target": label, "Action": "label.remove"}).json()
    assert [row["detail"] for row in rows["items"]] == [{"devices": 3}]
    assert service.operator.post("/api/v1/labels", json={"label": label}).json()["deviceCount"] == 0


@pytest.mark.both_databases
@pytest.mark.rule("rest-33", "rest-61", "rest-16")
def test_labels_come_in_the_order_of_their_letters(service: RunningService) -> None:
    device, prefix = service.new_device(), service.new_name("o")
    texts = [f"{prefix}{each}" for each in ("B", "a", "\uffee", "é", "/", "Z", DOOR, "会")]
    for text in texts:
        _attach(service, device, text)
    assert _labels(service, device) == sorted(texts)
    listed: list[str] = []
    query: dict[str, Any] = {"MaxResults": 3}
    while "NextToken" not in query or query["NextToken"] is not None:
        page = service.viewer.get("/api/v1/labels", params=query).json()
        assert 0 < len(page["items"]) <= 3
        listed += [item["label"] for item in page["items"]]
        query["NextToken"] = page["nextToken"]
    assert listed == sorted(_counts(service))
    assert set(texts) <= set(listed)
