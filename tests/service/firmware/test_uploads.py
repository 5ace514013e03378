"""Uploading firmware: whole, checked, or not at all."""

from __future__ import annotations

import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from meshfleet.protocol.firmware_image import MAX_PACKAGE_BYTES
from meshfleet.rest import FIRMWARE_PATH
from tests.eventually import eventually
from tests.row_tables import each_row
from tests.service.firmware.uploads import (
    BUNDLE,
    MODEL,
    digest,
    faults,
    kept,
    new_content,
    new_version,
    package,
    under_way,
    upload,
    uploaded,
)
from tests.service.http.raw_http import build_bearer_header, build_head, connect_raw

if TYPE_CHECKING:
    from collections.abc import Iterator

    import httpx

    from tests.service.http.running_service import RunningService


@pytest.mark.rule("rest-107", "rest-109", "rest-8", "rest-108")
def test_an_upload_makes_a_record_that_is_a_draft(service: RunningService) -> None:
    version = new_version()
    content = package(version)
    answer = upload(
        service,
        content,
        "fw.zip",
        version=version,
        hardwareVersions=["1.2.0", "2.0"],
        minVersion="1.0.0-beta.2",
        notes="First line\nand more: ü",
        sha256=digest(content).upper(),
        type="1",
    )
    assert answer.status_code == 201, answer.text
    record = answer.json()
    assert record.pop("id").startswith("fw-")
    assert record.pop("createdAt")
    assert record == {  # and no more
        "modelNumber": MODEL,
        "version": version,
        "type": 1,
        "bare": False,
        "fileName": "fw.zip",
        "size": len(content),
        "sha256": digest(content),
        "hardwareVersions": ["1.2.0", "2.0.0"],
        "minVersion": "1.0.0-beta.2",
        "notes": "First line\nand more: ü",
        "state": "draft",
        "createdBy": "api-key: key of a admin",
        "releasedAt": None,
    }


def test_what_nobody_says_is_as_usual(service: RunningService) -> None:
    record = uploaded(service, modelNumber="00ab")
    assert (record["modelNumber"], record["hardwareVersions"], record["minVersion"]) == ("00AB", [], None)
    assert (record["notes"], record["type"], record["bare"]) == ("", 1, True)
    bundle = uploaded(service, BUNDLE, name="Gateway.RAUCB")
    assert (bundle["type"], bundle["bare"]) == (2, False)
    for kind in ("1", None):
        record = uploaded(service, name="x.raucb", bare="true", type=kind)
        assert (record["type"], record["bare"]) == (1, True)
    version = new_version()
    record = uploaded(service, package(version), version=version, bare="false", override="false")
    assert (record["type"], record["bare"]) == (1, False)


def test_parts_may_come_in_any_order(service: RunningService) -> None:
    content = new_content()
    parts: list[tuple[str, Any]] = [
        ("image", ("a.bin", content)),
        ("version", (None, new_version())),
        ("modelNumber", (None, MODEL)),
        ("bare", (None, "true")),
    ]
    for ordered in (parts, parts[::-1]):
        answer = service.admin.post(FIRMWARE_PATH, files=ordered)
        assert answer.status_code in {201, 409}, answer.text
    assert digest(content) in kept(service)


@each_row(
    ("given", "expected"),
    [
        ("../../etc/passwd", "passwd"),
        ("C:\\fw\\image.zip", "image.zip"),
        ("  spaced name.bin ", "spaced name.bin"),
        ("ünïcode-固件.bin", "ünïcode-固件.bin"),
        ("x" * 300 + ".zip", "x" * 251 + ".zip"),
        ("a\x1b[31m.bin", "a[31m.bin"),
        ("a\u202eb\u200b\u2028.bin", "ab.bin"),
    ],
)
def test_a_file_name_is_cleaned(service: RunningService, given: str, expected: str) -> None:
    version = new_version()
    record = uploaded(
        service, package(version) if given.endswith(".zip") else None, name=given, version=version
    )
    assert record["fileName"] == expected
    image = service.viewer.get(f"{FIRMWARE_PATH}/{record['id']}/image")
    assert image.status_code == 200
    assert image.headers["Content-Disposition"].startswith("attachment; filename=")


@each_row(
    ("fields", "field"),
    [
        ({"modelNumber": None}, "modelNumber"),
        ({"modelNumber": "18"}, "modelNumber"),
        ({"modelNumber": ["0018", "0018"]}, "modelNumber"),
        ({"version": None}, "version"),
        ({"version": "three"}, "version"),
        ({"version": ""}, "version"),
        ({"version": "256.0.0"}, "version"),
        ({"hardwareVersions": ["1.0.0", "x"]}, "hardwareVersions[1]"),
        ({"hardwareVersions": "1.0.0,2.0.0"}, "hardwareVersions[0]"),
        ({"hardwareVersions": "1.0.0-beta.1"}, "hardwareVersions[0]"),
        ({"hardwareVersions": ["1.0.0"] * 101}, "hardwareVersions"),
        ({"minVersion": "x"}, "minVersion"),
        ({"version": "1.9.9", "minVersion": "1.10.0"}, "minVersion"),
        ({"version": "1.0.0-beta.3", "minVersion": "1.0.0"}, "minVersion"),
        ({"notes": "x" * 10_001}, "notes"),
        ({"notes": "x" * 100_000}, "notes"),
        ({"notes": "a\0b"}, "notes"),
        ({"notes": "a\x1b[31m"}, "notes"),
        ({"notes": "a\x7f"}, "notes"),
        ({"notes": ["a", "b"]}, "notes"),
        ({"notes": b"\xff"}, "notes"),
        ({"sha256": "abc"}, "sha256"),
        ({"sha256": "0" * 64}, "sha256"),
        ({"type": "3"}, "type"),
        ({"type": ""}, "type"),
        ({"type": "2"}, "bare"),
        ({"bare": "yes"}, "bare"),
        ({"bare": ["true", "true"]}, "bare"),
        ({"override": "1"}, "override"),
        ({"unknown": "x"}, "unknown"),
        ({"ModelNumber": "0018"}, "ModelNumber"),
    ],
)
def test_a_wrong_field_is_named(service: RunningService, fields: dict[str, Any], field: str) -> None:
    content = new_content()
    assert list(faults(upload(service, content, **fields))) == [field]
    assert digest(content) not in kept(service)
    assert not under_way(service)


def test_the_least_version_may_be_the_version_itself(service: RunningService) -> None:
    version = new_version()
    assert uploaded(service, version=version, minVersion=version)["minVersion"] == version


@pytest.mark.rule("rest-109")
def test_all_that_is_wrong_is_told_at_once(service: RunningService) -> None:
    answer = upload(service, modelNumber="x", version=None, minVersion="y", type="0", unknown="z", sha256="-")
    assert set(faults(answer)) == {"modelNumber", "version", "minVersion", "type", "unknown", "sha256"}


def test_there_must_be_an_image_that_is_a_file_and_not_empty_and_only_one(service: RunningService) -> None:
    fields = {"modelNumber": (None, MODEL), "version": (None, new_version())}
    assert faults(service.admin.post(FIRMWARE_PATH, files=fields)) == {"image": "is missing"}
    assert faults(service.admin.post(FIRMWARE_PATH, files={**fields, "image": (None, b"x")})) == {
        "image": "has no file name"
    }
    assert faults(service.admin.post(FIRMWARE_PATH, files={**fields, "image": ("..", b"x")})) == {
        "image": "has no file name"
    }
    assert faults(service.admin.post(FIRMWARE_PATH, files={**fields, "image": ("a.bin", b"")})) == {
        "image": "is empty"
    }
    twice: list[tuple[str, Any]] = [*fields.items(), ("image", ("a", b"x")), ("image", ("b", b"y"))]
    assert faults(service.admin.post(FIRMWARE_PATH, files=twice)) == {"image": "is given more than once"}
    assert not under_way(service)


@pytest.mark.rule("firmware-17", "rest-213")
@each_row(
    ("content", "reason"),
    [
        (package("3.4.2")[:-200], "damaged zip"),
        (package("3.4.2")[:100], "zip"),
        (b"PK\x03\x04 and then nonsense", "zip"),
        (b"hello", "is not a Nordic package (a zip file)"),
        (package("3.4.2", "0005"), "is a package for model 0005; the record says 0018"),
        (package("3.4.1"), "is a package of version 3.4.1; the record says 3.4.2"),
        (package("3.4.2-beta.1"), "is a package of version 3.4.2-beta.1; the record says 3.4.2"),
    ],
)
def test_a_package_that_gateways_would_refuse_is_refused(
    service: RunningService, content: bytes, reason: str
) -> None:
    for name in ("fw.zip", "fw"):
        refused = upload(service, content, name, version="3.4.2", bare=None)
        assert reason in faults(refused)["image"]
    assert digest(content) not in kept(service)
    assert not under_way(service)
    assert uploaded(service, content, name="fw.raucb")["type"] == 2


@pytest.mark.rule("rest-220")
def test_a_package_that_differs_in_model_and_version_is_refused_for_both(service: RunningService) -> None:
    answer = upload(service, package("1.2.3", "0005"), "fw.zip", version="3.4.2", override="true")
    assert [each["message"] for each in answer.json()["errors"]] == [
        "is a package for model 0005; the record says 0018",
        "is a package of version 1.2.3; the record says 3.4.2",
    ]


# --- Bare images ---


@pytest.mark.rule("rest-213", "firmware-44")
@each_row("name", ["hostname", "hostname.bin", "hostname.zip"])
def test_a_file_that_is_no_package_needs_to_be_called_bare(service: RunningService, name: str) -> None:
    for content in (b"my-host\n", new_content()):
        assert faults(upload(service, content, name, bare=None, override="true")) == {
            "image": "is not a Nordic package (a zip file)",
            "bare": "must be true if it is a bare image",
        }
        assert digest(content) not in kept(service)


@pytest.mark.rule("rest-213", "rest-221", "firmware-44")
def test_a_bare_image_that_fails_its_check_needs_an_override_that_the_audit_log_keeps(
    service: RunningService,
) -> None:
    content = b"my-desk\n"
    answer = upload(service, content, "hostname")
    assert (answer.status_code, answer.json()["code"]) == (400, "image-check-failed")
    found = faults(answer)
    assert "it has 8 bytes" in found["image"]
    assert found["override"] == "must be true to accept it all the same"
    assert not under_way(service)
    record = uploaded(service, content, name="hostname", override="true")
    assert (record["bare"], record["size"]) == (True, len(content))
    (row,) = service.admin.get("/api/v1/audit", params={"Target": record["id"]}).json()["items"]
    assert (row["action"], row["detail"]["bare"], row["detail"]["sha256"]) == (
        "firmware.upload",
        True,
        digest(content),
    )
    assert "8 bytes" in row["detail"]["override"]
    fine = uploaded(service, override="true")
    (row,) = service.admin.get("/api/v1/audit", params={"Target": fine["id"]}).json()["items"]
    assert "override" not in row["detail"]


@pytest.mark.rule("rest-213")
def test_a_package_is_no_bare_image_whatever_is_overridden(service: RunningService) -> None:
    version = new_version()
    answer = upload(service, package(version), "fw.bin", version=version, bare="true", override="true")
    assert faults(answer) == {"bare": "is true, but the image is a zip file, such as a Nordic package"}


@pytest.mark.rule("firmware-17")
@pytest.mark.parametrize(
    "content",
    [bytes(MAX_PACKAGE_BYTES + 1), package("3.4.2").ljust(MAX_PACKAGE_BYTES + 1)],
    ids=["bare", "zip"],
)
def test_what_is_larger_than_any_package_is_none(service: RunningService, content: bytes) -> None:
    reason = faults(upload(service, content, "fw.zip"))["image"]
    assert reason.startswith(
        f"has {MAX_PACKAGE_BYTES + 1} bytes; a Nordic package has at most {MAX_PACKAGE_BYTES}"
    )
    assert digest(content) not in kept(service)
    assert not under_way(service)
    assert uploaded(service, content, name="fw.raucb")["size"] == MAX_PACKAGE_BYTES + 1


@pytest.mark.rule("rest-113")
def test_the_same_model_and_version_a_second_time_is_a_conflict(service: RunningService) -> None:
    first, second, version = new_content(), new_content(), new_version()
    record = uploaded(service, first, version=version)
    answer = upload(service, second, version=version)
    assert (answer.status_code, answer.json()["code"]) == (409, "already-exists")
    assert digest(second) not in kept(service)
    assert not under_way(service)
    assert uploaded(service, second, version=f"{version}-beta.1")["id"] != record["id"]
    assert uploaded(service, second, version=version, modelNumber="0019")["id"] != record["id"]


@pytest.mark.rule("rest-113", "rest-114")
def test_of_many_at_the_same_moment_one_is_kept(service: RunningService) -> None:
    version, contents = new_version(), [new_content() for _ in range(6)]
    with ThreadPoolExecutor(6) as threads:
        answers = list(threads.map(lambda content: upload(service, content, version=version), contents))
    assert sorted(each.status_code for each in answers) == [201] + [409] * 5
    (made,) = (each.json() for each in answers if each.status_code == 201)
    assert kept(service) & {digest(each) for each in contents} == {made["sha256"]}
    assert not under_way(service)


@each_row("kind", ["application/json", "multipart/mixed; boundary=x", "text/plain"])
def test_another_content_type_is_refused(service: RunningService, kind: str) -> None:
    answer = service.admin.post(FIRMWARE_PATH, content=b"{}", headers={"Content-Type": kind})
    assert (answer.status_code, answer.json()["code"]) == (415, "unsupported-media-type")


_WHOLE = (
    b'--x\r\nContent-Disposition: form-data; name="modelNumber"\r\n\r\n0018\r\n'
    b'--x\r\nContent-Disposition: form-data; name="bare"\r\n\r\ntrue\r\n'
    b'--x\r\nContent-Disposition: form-data; name="version"\r\n\r\n%s\r\n'
    b'--x\r\nContent-Disposition: form-data; name="image"; filename="a.bin"\r\n\r\n%s\r\n--x--\r\n'
)


def _send(
    service: RunningService, body: bytes, kind: str = "multipart/form-data; boundary=x"
) -> httpx.Response:
    return service.admin.post(FIRMWARE_PATH, content=body, headers={"Content-Type": kind})


@each_row("cut", [1, 5, 9, 40, 300])
def test_a_form_without_its_end_is_refused(service: RunningService, cut: int) -> None:
    content = new_content()
    whole = _WHOLE % (new_version().encode(), content)
    assert faults(_send(service, whole[:-cut] if cut > 2 else whole[:-4]))
    assert digest(content) not in kept(service)
    assert not under_way(service)
    assert _send(service, whole).status_code == 201


@each_row(
    "body",
    [
        b"",
        b"--x--\r\n",
        b"--x\r\n\r\n\r\n--x--",
        b"--y\r\n",
        b"x" * 100_000,
        b"--x\r\n" + b"H: v\r\n" * 1000,
        b'--x\r\nContent-Disposition: form-data; name="\xff"\r\n\r\n\r\n--x--',
        b'--x\r\nContent-Disposition: form-data; name="notes"\r\n\r\n\r\n' * 500 + b"--x--",
    ],
)
def test_what_is_no_form_is_refused(service: RunningService, body: bytes) -> None:
    assert faults(_send(service, body))
    assert not under_way(service)


def test_a_form_must_say_what_parts_it(service: RunningService) -> None:
    assert list(faults(_send(service, b"", "multipart/form-data"))) == ["Content-Type"]
    assert list(faults(_send(service, b"", "multipart/form-data; boundary="))) == ["Content-Type"]


@pytest.mark.rule("rest-114")
def test_who_goes_away_in_the_middle_leaves_nothing_behind(service: RunningService) -> None:
    content = b"x" * 3_000_000
    whole = _WHOLE % (new_version().encode(), content)
    lines = ["Content-Type: multipart/form-data; boundary=x", f"Content-Length: {len(whole)}"]
    with connect_raw(service) as connection:
        connection.send(
            build_head(f"POST {FIRMWARE_PATH}", build_bearer_header(service), *lines) + whole[:2_500_000]
        )
        eventually(lambda: under_way(service), "the file of an upload")
        connection.hang_up()
    eventually(lambda: not under_way(service), "the end of that file")
    assert digest(content) not in kept(service)


@pytest.mark.rule("rest-27")
def test_an_upload_may_be_much_larger_than_other_bodies_and_is_not_held_in_memory(
    service: RunningService,
) -> None:
    pieces = 20
    content = bytes(range(256)) * 4096

    def body() -> Iterator[bytes]:
        form = _WHOLE.replace(b"a.bin", b"a.raucb").replace(b"true", b"false")
        front, _, end = form.partition(b"%s\r\n--x--")
        yield front % new_version().encode()
        yield from (content for _ in range(pieces))
        yield (b"%s\r\n--x--" + end).replace(b"%s", b"")

    tracemalloc.start()
    try:
        answer = service.admin.post(
            FIRMWARE_PATH, content=body(), headers={"Content-Type": "multipart/form-data; boundary=x"}
        )
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert answer.status_code == 201, answer.text
    assert answer.json()["size"] == pieces * len(content)
    assert answer.json()["sha256"] == digest(content * pieces)
    assert most < 8 * 1024 * 1024
