"""Static files of the console: security headers, compression and caching."""

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
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; font-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
SECURITY_HEADERS = {
    "content-security-policy": POLICY,
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}
UNCOMPRESSED = {"Accept-Encoding": "identity"}


@pytest.fixture(autouse=True, scope="module")
def built() -> Path:
    """Return the directory of the built console."""
    return require(CONSOLE).parent


@pytest.fixture
def script(built: Path) -> str:
    """Return the path of the script that the page loads."""
    match = re.search(r'src="(/assets/[^"]+\.js)"', (built / "index.html").read_text())
    assert match
    return match[1]


@pytest.mark.rule("rest-2")
@each_row(
    "path",
    ["/", "/devices", "/devices/bmac-02005e000001", "/devices/a.b", "/labels/%F0%9F%98%80%2F", "/no/such"],
)
def test_every_console_route_gets_the_same_page(service: RunningService, built: Path, path: str) -> None:
    response = service.anonymous.get(path, headers=UNCOMPRESSED)
    assert response.status_code == 200
    assert response.content == (built / "index.html").read_bytes()
    assert response.headers["content-type"] == "text/html; charset=utf-8"
    assert response.headers["cache-control"] == "no-cache"
    assert {name: response.headers[name] for name in SECURITY_HEADERS} == SECURITY_HEADERS


def test_files_with_a_digest_in_their_name_are_cached_forever(
    service: RunningService, built: Path, script: str
) -> None:
    response = service.anonymous.get(script, headers=UNCOMPRESSED)
    assert response.content == (built / script[1:]).read_bytes()
    assert response.headers["content-type"] == "text/javascript; charset=utf-8"
    assert response.headers["cache-control"] == "public, max-age=31536000, immutable"
    assert {name: response.headers[name] for name in SECURITY_HEADERS} == SECURITY_HEADERS


def test_every_file_has_its_media_type(service: RunningService) -> None:
    media_types = {
        path: service.anonymous.head(path).headers["content-type"]
        for path in static_files.load_static_files()
    }
    assert media_types
    assert [
        path for path, media_type in media_types.items() if media_type == "application/octet-stream"
    ] == []


@each_row("accepted", ["gzip", "br, gzip", "GZIP;q=0.001", "deflate;q=1 , gzip ; q=0.5", "gzip;q=1.000"])
def test_a_client_that_accepts_gzip_gets_it(service: RunningService, script: str, accepted: str) -> None:
    response = service.anonymous.get(script, headers={"Accept-Encoding": accepted})
    assert response.headers["content-encoding"] == "gzip"
    assert response.headers["vary"] == "accept-encoding"
    assert response.num_bytes_downloaded == int(response.headers["content-length"]) < len(response.content)
    assert response.content == service.anonymous.get(script, headers=UNCOMPRESSED).content


@each_row(
    "accepted",
    ["", "identity", "br", "gzip;q=0", "gzip; q=0.000", "gzip ;Q=0.", "gzipped", "br;q=0, gzip;q=0.0"],
)
def test_a_client_that_does_not_accept_gzip_gets_an_uncompressed_body(
    service: RunningService, script: str, accepted: str
) -> None:
    response = service.anonymous.get(script, headers={"Accept-Encoding": accepted})
    assert "content-encoding" not in response.headers
    assert response.headers["vary"] == "accept-encoding"
    assert response.num_bytes_downloaded == int(response.headers["content-length"])


def test_the_compressed_files_equal_the_uncompressed_ones(built: Path) -> None:
    small = list(built.rglob("*.gz"))
    assert small
    assert [
        path for path in small if gzip.decompress(path.read_bytes()) != path.with_suffix("").read_bytes()
    ] == []


def test_a_current_page_is_not_sent_again(service: RunningService) -> None:
    first = service.anonymous.get("/")
    tag = first.headers["etag"]
    for tags in (tag, f'"other", {tag}', tag.removeprefix("W/"), "*"):
        second = service.anonymous.get("/devices", headers={"If-None-Match": tags})
        assert (second.status_code, second.content) == (304, b"")
        assert {
            name: second.headers[name] for name in ("etag", "vary", "cache-control", *SECURITY_HEADERS)
        } == {name: first.headers[name] for name in ("etag", "vary", "cache-control", *SECURITY_HEADERS)}
    for unknown in ('"other"', "W/", tag.strip('W/"')):
        assert service.anonymous.get("/", headers={"If-None-Match": unknown}).status_code == 200


def test_a_head_response_is_a_get_response_without_its_body(service: RunningService, script: str) -> None:
    for path in ("/", "/devices", script):
        complete, head = service.anonymous.get(path), service.anonymous.head(path)
        assert (head.status_code, head.content) == (200, b"")
        without_time = [{**each.headers, "date": ""} for each in (complete, head)]
        assert without_time[0] == without_time[1]


@pytest.mark.rule("rest-9", "rest-12")
@each_row("method", ["POST", "PUT", "PATCH", "DELETE", "OPTIONS"])
def test_only_get_and_head_are_allowed(service: RunningService, script: str, method: str) -> None:
    for path in ("/", "/devices", script):
        response = service.anonymous.request(method, path)
        assert (response.status_code, response.json()["code"]) == (405, "method-not-allowed")
        assert response.json()["instance"] == path
        assert response.headers["content-type"] == "application/problem+json"
        assert response.headers["allow"] == "GET, HEAD"
        assert response.headers["content-security-policy"] != POLICY


@each_row("method", ["GET", "POST", "DELETE"])
@each_row("path", ["/api/v1/nothing", "/assets/nothing.js", "/NOTHING"])
def test_a_missing_file_is_not_found_by_any_method(service: RunningService, path: str, method: str) -> None:
    response = service.anonymous.request(method, path)
    assert (response.status_code, response.json()["code"]) == (404, "not-found")
    assert response.headers["content-type"] == "application/problem+json"


@each_row("path", ["/api", "/api/", "/api/v1/nothing", "/healthz", "/readyz", "/metrics"])
def test_paths_of_the_rest_interface_are_not_served_by_the_console(
    service: RunningService, path: str
) -> None:
    response = service.viewer.get(path)
    assert response.headers["content-type"].split(";")[0] != "text/html"
    assert response.headers["content-security-policy"] != POLICY
