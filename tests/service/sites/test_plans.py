"""Pictures of floors: upload, checks, download and backup."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from meshfleet.rest.paths import SITES_PATH
from meshfleet.rest.sites import MAX_PLAN_BYTES
from tests.row_tables import each_row
from tests.service.http.raw_http import build_bearer_header, build_head, exchange_raw
from tests.service.sites.site_requests import (
    REFERENCE,
    SVG,
    build_jpeg,
    build_png,
    create_site,
    list_audit,
    list_faults,
    upload_plan,
)

if TYPE_CHECKING:
    from tests.service.http.running_service import RunningService

both_databases = pytest.mark.both_databases


def _get_path(site: str, floor: int = 0) -> str:
    return f"{SITES_PATH}/{site}/floors/{floor}/plan"


@both_databases
@pytest.mark.rule("rest-251", "rest-252")
def test_a_plan_is_uploaded_shown_downloaded_and_deleted(service: RunningService) -> None:
    site = create_site(service)["id"]
    path = _get_path(site, 1)
    assert service.viewer.get(path).json()["detail"] == "the floor has no plan"
    content = build_png(300, 200, padding=600_000)  # several chunks
    response = upload_plan(service, site, content, floor=1)
    assert response.status_code == 200, response.text
    plan = response.json()
    assert service.viewer.get(f"{SITES_PATH}/{site}").json()["floors"][1]["plan"] == plan
    assert plan.pop("updatedAt")
    assert plan == {
        "contentType": "image/png",
        "width": 300.0,
        "height": 200.0,
        "size": len(content),
        "reference": REFERENCE,
        "transform": {"scale": 0.1, "rotation": 0.0, "originX": 0.0, "originY": 10.0},
    }
    picture = service.viewer.get(path)
    assert picture.content == content
    assert picture.headers["content-type"] == "image/png"
    assert picture.headers["content-disposition"] == 'inline; filename="floor1.png"'
    head = service.viewer.head(path)
    assert (head.status_code, head.content, head.headers["content-length"]) == (200, b"", str(len(content)))
    assert upload_plan(service, site, SVG, floor=1).json()["contentType"] == "image/svg+xml"
    replaced = service.viewer.get(path, headers={"If-None-Match": picture.headers["etag"]})
    assert (replaced.status_code, replaced.content) == (200, SVG)
    assert service.operator.delete(path).status_code == 204
    assert [service.operator.delete(path).status_code, service.viewer.get(path).status_code] == [404, 404]
    for wrong in (_get_path(site, 9), _get_path(site).replace("floors/0", "floors/x")):
        assert service.viewer.get(wrong).status_code == 404
    assert upload_plan(service, site, floor=9).status_code == 404
    assert [action for action, _ in list_audit(service, site)[1:]] == [
        *("plan.upload", "plan.upload", "plan.delete")
    ]


@pytest.mark.rule("rest-252")
def test_a_script_in_a_plan_never_runs(service: RunningService) -> None:
    site = create_site(service)["id"]
    assert upload_plan(service, site).status_code == 200
    path = _get_path(site)
    response = service.viewer.get(path)
    assert response.content == SVG
    assert response.headers["content-security-policy"] == (
        "default-src 'none'; style-src 'unsafe-inline'; sandbox"
    )
    assert response.headers["x-content-type-options"] == "nosniff"
    assert service.anonymous.get(path).status_code == 401
    etag = response.headers["etag"]
    for tags in (etag, f'"other", W/{etag}', "*"):
        unchanged = service.viewer.get(path, headers={"If-None-Match": tags})
        assert (unchanged.status_code, unchanged.content, unchanged.headers["etag"]) == (304, b"", etag)


@pytest.mark.rule("rest-251")
@each_row(
    ("points", "expected"),
    [
        ([(0, 0, 0, 0), (100, 0, 0, 5)], (0.05, 90, 0, 0)),
        ([(50, 50, 5, 5), (150, 50, -5, 5)], (0.1, 180, 10, 0)),
        ([(0, 100, -1, -2), (0, 0, -1, 18)], (0.2, 0, -1, 18)),
    ],
)
def test_two_points_say_how_a_plan_lies_on_its_floor(
    service: RunningService, points: list[tuple[float, ...]], expected: tuple[float, ...]
) -> None:
    site = create_site(service)["id"]
    reference = [dict(zip(("px", "py", "x", "y"), each, strict=True)) for each in points]
    transform = upload_plan(service, site, reference=reference).json()["transform"]
    assert list(transform.values()) == pytest.approx(expected, abs=1e-9)


@pytest.mark.rule("rest-251")
@each_row(
    ("reference", "fields"),
    [
        ("", ["reference"]),
        ("[{]", ["reference"]),
        ("{}", ["reference"]),
        (json.dumps(REFERENCE[:1]), ["reference"]),
        (json.dumps(REFERENCE * 2), ["reference"]),
        (json.dumps([{**REFERENCE[0], "z": 1}, REFERENCE[1]]), ["reference[0].z"]),
        ('[{"px": NaN}]', ["reference"]),
        ('[{"px": 1e999}]', ["reference"]),
        ('[{"px": 0}]', ["reference[0].py"]),
        ("[" * 50_000, ["reference"]),
        (json.dumps([{**REFERENCE[0], "px": 201}, {**REFERENCE[1], "y": -1e5}]), 2),
        (json.dumps([REFERENCE[0], {**REFERENCE[0], "x": 5}]), ["reference"]),
        (json.dumps([REFERENCE[0], {**REFERENCE[1], "x": 0.05}]), ["reference"]),
    ],
)
def test_wrong_reference_points_are_refused(service: RunningService, reference: str, fields: Any) -> None:
    site = create_site(service)["id"]
    found = list(list_faults(upload_plan(service, site, reference=reference)))
    assert found == (["reference[0].px", "reference[1].y"] if fields == 2 else fields)


@pytest.mark.rule("rest-253")
@each_row(
    ("content", "expected"),
    [
        (build_jpeg(640, 480), ("image/jpeg", 640.0, 480.0)),
        (build_jpeg(640, 480, orientation=6), ("image/jpeg", 480.0, 640.0)),
        (b"\xef\xbb\xbf\n" + SVG, ("image/svg+xml", 200.0, 100.0)),
        (SVG.decode().encode("utf-16"), ("image/svg+xml", 200.0, 100.0)),
        (SVG.replace(b"viewBox", b'width="2in" height=".5in" viewBox'), ("image/svg+xml", 192.0, 48.0)),
        (SVG.replace(b"viewBox", b'width="100%" height="400" viewBox'), ("image/svg+xml", 800.0, 400.0)),
    ],
)
def test_the_type_and_size_of_a_plan_are_those_of_its_bytes(
    service: RunningService, content: bytes, expected: tuple[str, float, float]
) -> None:
    site = create_site(service)["id"]
    reference = [{**REFERENCE[0], "py": 0}, {**REFERENCE[1], "py": 0}]
    plan = upload_plan(service, site, content, reference=reference).json()
    assert (plan["contentType"], plan["width"], plan["height"]) == expected
    assert service.viewer.get(_get_path(site)).headers["content-type"] == expected[0]


NESTED = SVG.replace(b"<script>alert(1)</script>", b"<g>" * 300 + b"</g>" * 300)
ENTITIES = b'<!DOCTYPE svg [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;">]>' + SVG


@pytest.mark.rule("rest-253")
@each_row(
    ("content", "status", "reason"),
    [
        (b"GIF89a", 415, ""),
        (b"%PDF-1.7", 415, ""),
        (b"<!DOCTYPE html><html><script>alert(1)</script></html>", 415, ""),
        (SVG.replace(b"http://www.w3.org/2000/svg", b"urn:other"), 415, ""),
        (SVG[:-3], 400, "well-formed"),
        (ENTITIES, 400, "DOCTYPE"),
        (NESTED, 400, "levels"),
        (SVG.replace(b"viewBox", b"box"), 400, "viewBox"),
        (SVG.replace(b"0 0 200 100", b"0 0 200 0"), 400, "viewBox"),
        (build_png(1, 1)[:-12], 400, "end is missing"),
        (build_png(30_001, 1), 400, "pixels"),
        (build_png(20_000, 20_000, data_rows=1), 400, "pixels"),
        (build_png(9_000, 9_000, data_rows=1), 400, "not enough data"),
        (build_png(2, 2).replace(b"\0\0\0\2", b"\0\0\0\1", 1), 400, "checksum"),
        (build_png(0, 2), 400, "pixels"),
        (build_jpeg(0, 0), 400, "pixels"),
        (build_jpeg(640, 480)[:30], 400, "size is missing"),
        (b"", 400, "empty"),
    ],
)
def test_a_file_that_is_no_plan_is_refused(
    service: RunningService, content: bytes, status: int, reason: str
) -> None:
    site = create_site(service)["id"]
    response = upload_plan(service, site, content)
    assert response.status_code == status, response.text
    assert reason in response.text
    assert service.viewer.get(_get_path(site)).status_code == 404


@pytest.mark.rule("rest-251", "rest-253")
def test_a_wrong_form_is_refused(service: RunningService) -> None:
    path = _get_path(create_site(service)["id"])
    fields = {"reference": json.dumps(REFERENCE)}
    image = {"image": ("a.svg", SVG)}
    assert service.operator.put(path, json=fields).status_code == 415
    assert list_faults(service.operator.put(path, data=fields, files={"x": SVG})).keys() == {"image", "x"}
    assert list(list_faults(service.operator.put(path, files=image))) == ["reference"]
    wrong = service.operator.put(path, data={**fields, "sha256": "0" * 64}, files=image)
    assert list(list_faults(wrong)) == ["sha256"]


@pytest.mark.rule("rest-253")
def test_a_plan_may_have_20_mib_and_not_one_byte_more(service: RunningService) -> None:
    site = create_site(service)["id"]
    empty = len(build_png(300, 200))
    largest = build_png(300, 200, padding=MAX_PLAN_BYTES - empty)
    assert len(largest) == MAX_PLAN_BYTES
    assert upload_plan(service, site, largest).status_code == 200
    response = upload_plan(service, site, largest + b"\0")
    assert (response.status_code, response.json()["code"]) == (413, "body-too-large")
    assert service.viewer.get(_get_path(site)).content == largest


@pytest.mark.rule("rest-253")
def test_a_plan_that_is_much_too_large_is_refused_before_it_is_sent(service: RunningService) -> None:
    site = create_site(service)["id"]
    head = build_head(
        f"PUT {_get_path(site)}",
        build_bearer_header(service),
        "Content-Type: multipart/form-data; boundary=b",
        f"Content-Length: {100 * 1024 * 1024}",
    )
    response = exchange_raw(service, head)
    assert response is not None
    assert response.status == 413
