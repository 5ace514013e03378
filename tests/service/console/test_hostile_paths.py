"""Hostile paths cannot leave the console's files and cause no errors."""

from __future__ import annotations

from typing import TYPE_CHECKING

from meshfleet.service.console import static_files
from tests.row_tables import each_row
from tests.service.http.raw_http import build_head, exchange_raw

if TYPE_CHECKING:
    from pathlib import Path

    from tests.service.http.running_service import RunningService

MISSING = [
    "/assets/nope.js",
    "/assets/",
    "/assets/nope",
    "/assets/../index.html",
    "/assets/..%2findex.html",
    "/favicon.ico",
    "/robots.txt",
    "/index.html.gz",
    "/index.html/",
    "/.built-from",
    "/..%2f",
    "/..%2f..%2fetc%2fpasswd",
    "/../../etc/passwd",
    "/%2e%2e/%2e%2e/etc/passwd",
    "/..%5c..%5cwindows",
    "//evil",
    "//evil.example/devices",
    "/%2F%2Fevil",
    "/\\evil",
    "/%00",
    "/index.html%00.js",
    "/%ff",
    "/%C3%A4",
    "/%0D%0ASet-Cookie:%20a=b",
    "/Devices",
    f"/{'x' * 5000}",
    f"/assets/{'x' * 5000}.js",
]


@each_row("path", MISSING)
def test_a_missing_file_is_a_problem(service: RunningService, path: str) -> None:
    response = exchange_raw(service, build_head(f"GET {path}"))
    assert response is not None
    assert response.headers["Content-Type"] == "application/problem+json"
    assert (response.status, response.json()["code"], response.json()["instance"]) == (404, "not-found", path)
    assert "set-cookie" not in response.headers


@each_row(
    "path",
    [
        "/devices/%00",
        "/devices/%ff",
        "/devices/../../../etc/passwd",
        f"/devices/{'x' * 50_000}",
        "/devices//",
    ],
)
def test_unusual_names_in_console_routes_get_the_page(service: RunningService, path: str) -> None:
    response = exchange_raw(service, build_head(f"GET {path}"))
    assert response is not None
    assert (response.status, response.body) == (
        200,
        static_files.load_static_files()[static_files.INDEX_PATH].body,
    )


@each_row("path", [b"/\xe4", b"/devices/\xff\xfe", b"/a b", b"/\x01", b"http://evil.example/devices"])
def test_an_invalid_path_causes_no_error(service: RunningService, path: bytes) -> None:
    response = exchange_raw(service, b"GET " + path + b" HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert response is None or response.status in {200, 400, 404}
    assert service.anonymous.get("/healthz").status_code == 200


def test_a_console_that_was_not_built_has_a_page_that_says_so(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "none"):
        pages = static_files.load_static_files(folder)
        assert list(pages) == [static_files.INDEX_PATH]
        assert b"The console was not built" in pages[static_files.INDEX_PATH].body
        assert pages[static_files.INDEX_PATH].media_type == "text/html; charset=utf-8"


def test_an_incomplete_build_counts_as_not_built(tmp_path: Path) -> None:
    (tmp_path / "assets").mkdir()
    (tmp_path / "assets" / "index.js").write_text("")
    assert list(static_files.load_static_files(tmp_path)) == [static_files.INDEX_PATH]


def test_hidden_build_files_are_not_served(tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text("page")
    (tmp_path / ".built-from").write_text("digest")
    assert list(static_files.load_static_files(tmp_path)) == ["/index.html"]
