"""No path leads out of the console, or breaks anything."""

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
def test_what_is_not_there_is_a_problem(service: RunningService, path: str) -> None:
    answer = exchange_raw(service, build_head(f"GET {path}"))
    assert answer is not None
    assert answer.headers["Content-Type"] == "application/problem+json"
    assert (answer.status, answer.json()["code"], answer.json()["instance"]) == (404, "not-found", path)
    assert "set-cookie" not in answer.headers


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
def test_strange_names_in_a_place_are_for_the_page_to_judge(service: RunningService, path: str) -> None:
    answer = exchange_raw(service, build_head(f"GET {path}"))
    assert answer is not None
    assert (answer.status, answer.body) == (
        200,
        static_files.load_static_files()[static_files.INDEX_PATH].body,
    )


@each_row("path", [b"/\xe4", b"/devices/\xff\xfe", b"/a b", b"/\x01", b"http://evil.example/devices"])
def test_what_is_no_path_breaks_nothing(service: RunningService, path: bytes) -> None:
    answer = exchange_raw(service, b"GET " + path + b" HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert answer is None or answer.status in {200, 400, 404}
    assert service.anonymous.get("/healthz").status_code == 200


def test_without_a_site_the_page_says_that_it_was_not_built(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "none"):
        pages = static_files.load_static_files(folder)
        assert list(pages) == [static_files.INDEX_PATH]
        assert b"The console was not built" in pages[static_files.INDEX_PATH].body
        assert pages[static_files.INDEX_PATH].media_type == "text/html; charset=utf-8"


def test_half_a_site_counts_as_none(tmp_path: Path) -> None:
    (tmp_path / "assets").mkdir()
    (tmp_path / "assets" / "index.js").write_text("")
    assert list(static_files.load_static_files(tmp_path)) == [static_files.INDEX_PATH]


def test_notes_beside_the_site_are_not_served(tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text("page")
    (tmp_path / ".built-from").write_text("digest")
    assert list(static_files.load_static_files(tmp_path)) == ["/index.html"]
