"""Unusual characters are refused or not found and never cause a server error."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from meshfleet.protocol.ids import parse_device_id, to_mac
from meshfleet.service.devices import registry
from tests.row_tables import each_row
from tests.service.http.raw_http import build_bearer_header, build_head, exchange_raw
from tests.service.http.running_service import PASSWORD

if TYPE_CHECKING:
    import httpx

    from tests.service.http.running_service import RunningService

NUL = "%00"
UNUSUAL_SEGMENTS = {
    "nul": NUL,
    "nul inside": f"a{NUL}b",
    "no UTF-8": "%ff",
    "cut UTF-8": "%F0%9F",
    "surrogate": "%ED%A0%80",
    "control": "%1F",
    "line end": "%0D%0A",
    "percent": "%25",
    "encoded slash": "%2F",
    "dots": "%2E%2E",
    "backslash": "%5C",
    "quote": "%27%22",
    "long": "x" * 5000,
    "private use": "%EF%BF%BF",
}


@pytest.mark.rule("rest-15")
@each_row(
    ("method", "path"),
    [
        ("GET", "/{}"),
        ("GET", "/api/v1/users/{}"),
        ("PUT", "/api/v1/users/{}"),
        ("DELETE", "/api/v1/users/{}"),
        ("DELETE", "/api/v1/api-keys/{}"),
        ("GET", "/api/v1/gateways/{}"),
        ("DELETE", "/api/v1/gateways/{}"),
        ("POST", "/api/v1/gateways/{}/credentials"),
        ("GET", "/api/v1/devices/{}"),
        ("DELETE", "/api/v1/devices/{}"),
        ("PUT", "/api/v1/devices/{}/labels/x"),
        ("DELETE", "/api/v1/devices/{}/labels/x"),
        ("DELETE", "/api/v1/labels/{}"),
    ],
)
def test_an_unusual_text_in_a_path_is_not_found(service: RunningService, method: str, path: str) -> None:
    body = b'{"role": "viewer"}' if method == "PUT" and "users" in path else b""
    results = {}
    for name, text in UNUSUAL_SEGMENTS.items():
        request = build_head(
            f"{method} {path.format(text)}", build_bearer_header(service), f"Content-Length: {len(body)}"
        )
        response = exchange_raw(service, request + body)
        results[name] = response and (response.status, response.json()["code"], response.json()["instance"])
    assert results == {name: (404, "not-found", path.format(text)) for name, text in UNUSUAL_SEGMENTS.items()}


@each_row(
    ("text", "status"),
    [(NUL, 404), (f"a{NUL}b", 404), ("%ff", 404), ("%ED%A0%80", 404), ("%1F", 400), ("x" * 5000, 400)],
)
def test_an_unusual_label_is_not_attached(service: RunningService, text: str, status: int) -> None:
    device = service.new_device()
    assert service.admin.put(f"/api/v1/devices/{device}/labels/{text}").status_code == status
    assert service.admin.delete(f"/api/v1/devices/{device}/labels/{text}").status_code == 404
    assert service.admin.get(f"/api/v1/devices/{device}").json()["labels"] == []


@each_row("text", [NUL, f"abc{NUL}", f"a{NUL}b", f"{NUL}abcd"])
@each_row("name", ["Label", "FriendlyName", "ModelNumber", "FirmwareVersion", "Gateway", "Ids", "NextToken"])
def test_a_nul_in_a_filter_of_devices_is_refused(service: RunningService, name: str, text: str) -> None:
    for path in ("/api/v1/devices", "/api/v1/devices/summary"):
        assert service.admin.get(f"{path}?{name}={text}").status_code == 400


@each_row("text", [NUL, f"abc{NUL}", "%1F", "x" * 5000, "%EF%BF%BF"])
@each_row("name", ["Actor", "Action", "Target"])
def test_an_unusual_audit_filter_finds_nothing_or_is_refused(
    service: RunningService, name: str, text: str
) -> None:
    response = service.admin.get(f"/api/v1/audit?{name}={text}")
    assert response.status_code in {200, 400}
    assert response.json().get("items", []) == []


UNUSUAL_TEXTS = ["\0", "a\0b", "abcdefghij\0", "\x1f", "\x7f", "\x85", "\u2028", "\ufffe", "\U0010ffff"]


@each_row("text", UNUSUAL_TEXTS)
def test_an_unusual_text_in_a_body_is_refused_or_stored_unchanged(service: RunningService, text: str) -> None:
    device = service.new_device()
    mac = service.new_mac()
    admin = service.admin
    kept = {
        "label": admin.post("/api/v1/labels", json={"label": text}),
        "friendlyName": admin.put(f"/api/v1/devices/{device}/friendly-name", json={"name": text}),
        "name": admin.post("/api/v1/api-keys", json={"name": text, "role": "viewer"}),
    }
    for field, response in kept.items():
        _check_refused_or_unchanged(response, field, text)
    refused = (
        admin.post("/api/v1/users", json={"username": text, "password": PASSWORD, "role": "viewer"}),
        admin.post("/api/v1/users", json={"username": "new-user", "password": PASSWORD, "role": text}),
        admin.post("/api/v1/gateways", json={"mac": text}),
        admin.post("/api/v1/api-keys", json={"name": "odd", "role": "viewer", "expiresAt": text}),
        admin.post("/api/v1/labels", json={"label": "odd", "deviceIds": [text]}),
    )
    assert [response.status_code for response in refused] == [400] * 5
    claim = admin.post("/api/v1/gateways", json={"mac": mac, "friendlyName": text})
    assert claim.status_code in {201, 400}
    assert ("\0" in text) <= (claim.status_code == 400)


_OVERRIDE = "\u202e"


@pytest.mark.rule("rest-44", "rest-66")
def test_bidirectional_control_characters_are_refused_in_all_displayed_texts(
    service: RunningService,
) -> None:
    device, text = service.new_device(), f"a{_OVERRIDE}b"
    admin = service.admin
    job = {"name": text, "firmwareId": "fw-1", "targets": {"all": True}}
    waves = {**job, "name": "good", "waves": [{"name": text, "count": 1}]}
    responses = {
        "label": admin.post("/api/v1/labels", json={"label": text}),
        "attached label": admin.put(f"/api/v1/devices/{device}/labels/{text}"),
        "friendly name": admin.put(f"/api/v1/devices/{device}/friendly-name", json={"name": text}),
        "gateway": admin.post("/api/v1/gateways", json={"mac": service.new_mac(), "friendlyName": text}),
        "API key": admin.post("/api/v1/api-keys", json={"name": text, "role": "viewer"}),
        "job": admin.post("/api/v1/jobs", json=job),
        "wave": admin.post("/api/v1/jobs", json=waves),
        "notes": admin.post(
            "/api/v1/firmware",
            data={"modelNumber": "2011", "version": "1.0.0", "notes": f"first line\n{text}"},
            files={"image": ("a.bin", b"x")},
        ),
    }
    missed = {
        name: response.text
        for name, response in responses.items()
        if response.status_code != 400 or "U+202E (RIGHT-TO-LEFT OVERRIDE)" not in response.text
    }
    assert missed == {}


@pytest.mark.rule("rest-44", "rest-66")
def test_an_existing_label_with_a_control_character_can_be_listed_and_removed(
    service: RunningService,
) -> None:
    old, device = f"{service.new_name()}{_OVERRIDE}", service.new_device()
    service.database.write_now(
        registry.attach_labels, [(old, to_mac(parse_device_id(device)))], at=service.clock()
    )
    listed = service.admin.get("/api/v1/devices", params={"Label": old}).json()["items"]
    assert [each["labels"] for each in listed] == [[old]]
    assert service.admin.delete(f"/api/v1/devices/{device}/labels/{old}").status_code == 200
    assert service.admin.delete(f"/api/v1/labels/{old}").status_code == 204


@pytest.mark.rule("auth-3")
@each_row("text", ["\0", "a\0b", "\x1f", "\U0010ffff", "ﬀ", "İ", "", "x" * 5000])
def test_a_login_with_an_unusual_name_is_refused(service: RunningService, text: str) -> None:
    response = service.anonymous.post("/api/v1/auth/login", json={"username": text, "password": PASSWORD})
    assert response.status_code in {401, 429}


@each_row("password", ["0123456789\0", "pässwörd-ß-ÿ", "\U0001f40e" * 10, " " * 10, "x" * 1024])
def test_a_password_may_be_any_text(service: RunningService, password: str) -> None:
    username = service.new_name("odd")
    created = service.admin.post(
        "/api/v1/users", json={"username": username, "password": password, "role": "viewer"}
    )
    assert created.status_code == 201
    service.log_in(username, password)


@pytest.mark.rule("rest-1")
@each_row(
    "body",
    [
        b"\xff\xfe",
        b'{"label": "\xff"}',
        b'{"label": "\xed\xa0\x80"}',
        b'{"label": "\\ud800"}',
        b'{"label": "\\udc00\\ud800"}',
        b'{"label": "\n"}',
        b"\xef\xbb\xbf{}",
        '{"label": "x"}'.encode("utf-16"),
        b"\0",
    ],
)
def test_a_body_that_is_not_utf_8_json_is_refused(service: RunningService, body: bytes) -> None:
    for method, path in (
        ("POST", "/api/v1/labels"),
        ("POST", "/api/v1/users"),
        ("PUT", f"/api/v1/devices/{service.new_device()}/friendly-name"),
        ("POST", "/api/v1/auth/login"),
    ):
        response = service.admin.request(method, path, content=body)
        assert (response.status_code, response.json()["code"]) == (400, "malformed-payload")


def _check_refused_or_unchanged(response: httpx.Response, field: str, text: str) -> None:
    if response.status_code == 400:
        assert [each["field"] for each in response.json()["errors"]] == [
            "name" if field == "friendlyName" else field
        ]
    else:
        assert response.status_code in {200, 201}
        assert response.json()[field] == text
        assert "\0" not in text
