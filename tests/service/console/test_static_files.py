"""The console is served beside the interface for programs: safe, small, and kept as long as it holds."""

from __future__ import annotations

import gzip
import re
from typing import TYPE_CHECKING

import pytest

from meshfleet.service.console import static_files
from tests.external_tools import CONSOLE, require
from tests.row_tables import each_row

if TYPE_CHECKING:
    from pathlib import Path

    from tests.service.http.running_service import RunningService

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
SAFE = {
    "content-security-policy": POLICY,
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}
PLAIN = {"Accept-Encoding": "identity"}


@pytest.fixture(autouse=True, scope="module")
def built() -> Path:
    """Where it was built."""
    return require(CONSOLE).parent


@pytest.fixture
def script(built: Path) -> str:
    """The path of the script that the first page asks for."""
    found = re.search(r'src="(/assets/[^"]+\.js)"', (built / "index.html").read_text())
    assert found
    return found[1]


@pytest.mark.rule("rest-2")
@each_row(
    "path",
    ["/", "/devices", "/devices/bmac-02005e000001", "/devices/a.b", "/labels/%F0%9F%98%80%2F", "/no/such"],
)
def test_every_place_begins_with_the_same_page(service: RunningService, built: Path, path: str) -> None:
    answer = service.anonymous.get(path, headers=PLAIN)
    assert answer.status_code == 200
    assert answer.content == (built / "index.html").read_bytes()
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert answer.headers["cache-control"] == "no-cache"
    assert {name: answer.headers[name] for name in SAFE} == SAFE


def test_what_has_a_digest_in_its_name_is_kept_for_ever(
    service: RunningService, built: Path, script: str
) -> None:
    answer = service.anonymous.get(script, headers=PLAIN)
    assert answer.content == (built / script[1:]).read_bytes()
    assert answer.headers["content-type"] == "text/javascript; charset=utf-8"
    assert answer.headers["cache-control"] == "public, max-age=31536000, immutable"
    assert {name: answer.headers[name] for name in SAFE} == SAFE


def test_every_file_is_said_to_be_what_it_is(service: RunningService) -> None:
    told = {
        path: service.anonymous.head(path).headers["content-type"]
        for path in static_files.load_static_files()
    }
    assert told
    assert [path for path, media_type in told.items() if media_type == "application/octet-stream"] == []


@each_row("accepted", ["gzip", "br, gzip", "GZIP;q=0.001", "deflate;q=1 , gzip ; q=0.5", "gzip;q=1.000"])
def test_who_accepts_it_gets_it_compressed(service: RunningService, script: str, accepted: str) -> None:
    answer = service.anonymous.get(script, headers={"Accept-Encoding": accepted})
    assert answer.headers["content-encoding"] == "gzip"
    assert answer.headers["vary"] == "accept-encoding"
    assert answer.num_bytes_downloaded == int(answer.headers["content-length"]) < len(answer.content)
    assert answer.content == service.anonymous.get(script, headers=PLAIN).content


@each_row(
    "accepted",
    ["", "identity", "br", "gzip;q=0", "gzip; q=0.000", "gzip ;Q=0.", "gzipped", "br;q=0, gzip;q=0.0"],
)
def test_who_does_not_accept_it_gets_it_as_it_is(service: RunningService, script: str, accepted: str) -> None:
    answer = service.anonymous.get(script, headers={"Accept-Encoding": accepted})
    assert "content-encoding" not in answer.headers
    assert answer.headers["vary"] == "accept-encoding"
    assert answer.num_bytes_downloaded == int(answer.headers["content-length"])


def test_what_was_compressed_is_what_was_built(built: Path) -> None:
    small = list(built.rglob("*.gz"))
    assert small
    assert [
        path for path in small if gzip.decompress(path.read_bytes()) != path.with_suffix("").read_bytes()
    ] == []


def test_who_has_the_page_already_is_told_so(service: RunningService) -> None:
    first = service.anonymous.get("/")
    tag = first.headers["etag"]
    for known in (tag, f'"other", {tag}', tag.removeprefix("W/"), "*"):
        again = service.anonymous.get("/devices", headers={"If-None-Match": known})
        assert (again.status_code, again.content) == (304, b"")
        assert {name: again.headers[name] for name in ("etag", "vary", "cache-control", *SAFE)} == {
            name: first.headers[name] for name in ("etag", "vary", "cache-control", *SAFE)
        }
    for unknown in ('"other"', "W/", tag.strip('W/"')):
        assert service.anonymous.get("/", headers={"If-None-Match": unknown}).status_code == 200


def test_a_head_is_the_answer_without_its_body(service: RunningService, script: str) -> None:
    for path in ("/", "/devices", script):
        whole, head = service.anonymous.get(path), service.anonymous.head(path)
        assert (head.status_code, head.content) == (200, b"")
        without_time = [{**each.headers, "date": ""} for each in (whole, head)]
        assert without_time[0] == without_time[1]


@pytest.mark.rule("rest-9", "rest-12")
@each_row("method", ["POST", "PUT", "PATCH", "DELETE", "OPTIONS"])
def test_nothing_can_be_done_to_it_but_to_read_it(service: RunningService, script: str, method: str) -> None:
    for path in ("/", "/devices", script):
        answer = service.anonymous.request(method, path)
        assert (answer.status_code, answer.json()["code"]) == (405, "method-not-allowed")
        assert answer.json()["instance"] == path
        assert answer.headers["content-type"] == "application/problem+json"
        assert answer.headers["allow"] == "GET, HEAD"
        assert answer.headers["content-security-policy"] != POLICY


@each_row("method", ["GET", "POST", "DELETE"])
@each_row("path", ["/api/v1/nothing", "/assets/nothing.js", "/NOTHING"])
def test_what_is_not_there_is_not_there_by_any_method(
    service: RunningService, path: str, method: str
) -> None:
    answer = service.anonymous.request(method, path)
    assert (answer.status_code, answer.json()["code"]) == (404, "not-found")
    assert answer.headers["content-type"] == "application/problem+json"


@each_row("path", ["/api", "/api/", "/api/v1/nothing", "/healthz", "/readyz", "/metrics"])
def test_what_programs_use_is_not_of_the_console(service: RunningService, path: str) -> None:
    answer = service.viewer.get(path)
    assert answer.headers["content-type"].split(";")[0] != "text/html"
    assert answer.headers["content-security-policy"] != POLICY
