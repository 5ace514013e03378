"""The console with a million devices in Chromium: time to the first rows, cost of scrolling and live updates.

The service is its own process on SQLite, with the fleet of `bench.api_fleet`. Anchors in the same run: for
the first rows, the same list requested by a plain HTTP client; for live rows, the same page without reports.
On a busy machine the time of the browser's main thread is more reliable than elapsed times.
"""

from __future__ import annotations

import json
import statistics
import time
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final

from paho.mqtt.client import Client as Mqtt
from paho.mqtt.enums import CallbackAPIVersion
from playwright.sync_api import sync_playwright
from tests.external_tools import CHROMIUM

from bench.api_client import run_service
from bench.api_fleet import GATEWAY_EVERY, SIZE, fill_database, generate_members
from meshfleet.db import open_database
from meshfleet.protocol.codes import Kind
from meshfleet.protocol.ids import to_device_id
from meshfleet.protocol.times import format_millis
from meshfleet.protocol.topics import ReportTopic

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from playwright.sync_api import Page

    from bench.api_client import Client, Server
    from meshfleet.protocol.ids import Mac

THRESHOLDS: Final = {
    "first rows, s": 1.5,
    "list requests before scrolling": 2,
    "rows in the page after 3,000": 60,
    "nodes after 3,000": 2_500,
}

QUICK_SIZE: Final = 20_000
TRIES, QUICK_TRIES = 10, 3
SCROLL_ROWS: Final = 3_000
"""Rows to scroll through."""

RATE: Final = 50
"""Reports per second of the devices behind one gateway, which are all in the shown list."""

SECONDS, QUICK_SECONDS = 20, 5
TIMEOUT_MS: Final = 60_000

_LIST: Final = "/api/v1/devices?"
_ROWS: Final = "tbody tr[aria-rowindex]"
_SCROLL: Final = "row => row.closest('[role=region]').scrollBy(0, 2000)"
_LAST: Final = "rows => Math.max(...rows.map(row => Number(row.getAttribute('aria-rowindex'))))"


def run(*, quick: bool) -> dict[str, Any]:
    """Fill the database, then measure the first rows, scrolling and live updates."""
    size = QUICK_SIZE if quick else SIZE
    with (
        _fill_database(size) as data,
        run_service(data, "sqlite", "--mqtt", "127.0.0.1:0") as server,
        _connect_gateway(server, size) as gateway,
        _open_browser(server.startup_info["url"], server.token) as page,
    ):
        meter = BrowserMeter(page)
        first = _measure_first_rows(page, server.client, QUICK_TRIES if quick else TRIES)
        deep = _measure_scrolling(page, meter)
        live = _measure_live_updates(page, meter, gateway, QUICK_SECONDS if quick else SECONDS)
    return {f"{size:,} devices": {**first, **deep}, f"{RATE} reports a second": live, "bars": THRESHOLDS}


class BrowserMeter:
    """Performance metrics of one tab, reported by the browser."""

    def __init__(self, page: Page) -> None:
        self._session = page.context.new_cdp_session(page)
        self._session.send("Performance.enable")

    @property
    def main_thread(self) -> float:
        """Busy time of the main thread, in seconds."""
        return self._metric("TaskDuration")

    @property
    def heap(self) -> float:
        """Bytes of the JavaScript heap after garbage collection."""
        self._session.send("HeapProfiler.collectGarbage")
        return self._metric("JSHeapUsedSize")

    def share(self, work: Callable[[], object]) -> float:
        """Return the load of the main thread in percent while the work runs."""
        before, start = self.main_thread, time.perf_counter()
        work()
        return round((self.main_thread - before) / (time.perf_counter() - start) * 100, 1)

    def _metric(self, name: str) -> float:
        metrics = self._session.send("Performance.getMetrics")["metrics"]
        return float(next(each["value"] for each in metrics if each["name"] == name))


@contextmanager
def _fill_database(size: int) -> Iterator[Path]:
    with TemporaryDirectory(prefix="meshfleet-bench-") as folder:
        database = open_database("sqlite", Path(folder))
        fill_database(database, size)
        database.close()
        yield Path(folder)


def _chromium() -> Path:
    found = CHROMIUM.find()
    if found is None:
        raise RuntimeError(CHROMIUM.missing_message)
    return found


@contextmanager
def _open_browser(url: str, token: str) -> Iterator[Page]:
    """Open a tab that is logged in."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=_chromium(), args=["--no-sandbox"])
        page = browser.new_context(base_url=url, viewport={"width": 1440, "height": 900}).new_page()
        page.set_default_timeout(TIMEOUT_MS)
        page.goto("/")
        page.evaluate("token => sessionStorage.setItem('meshfleet.token', token)", token)
        yield page
        browser.close()


def _measure_first_rows(page: Page, client: Client, tries: int) -> dict[str, Any]:
    """Measure the time from navigation to the first rows, and count the requests of the list."""
    requested: list[str] = []
    page.on("request", lambda request: requested.append(request.url) if _LIST in request.url else None)
    rows, responses = [], []
    for _ in range(tries):
        start = time.perf_counter()
        client.get(f"{_LIST}Include=live&MaxResults=100")
        responses.append(time.perf_counter() - start)
        requested.clear()
        page.goto("about:blank")
        start = time.perf_counter()
        page.goto("/devices", wait_until="commit")
        page.locator(_ROWS).first.wait_for()
        rows.append(time.perf_counter() - start)
        page.wait_for_load_state("networkidle")
    return {
        "first rows, s": round(statistics.median(rows), 2),
        "first rows, longest, s": round(max(rows), 2),
        "the list alone, ms": round(statistics.median(responses) * 1000, 1),
        "list requests before scrolling": len([each for each in requested if "Ids=" not in each]),
        "devices looked up by id, requests": len([each for each in requested if "Ids=" in each]),
    }


def _measure_scrolling(page: Page, meter: BrowserMeter) -> dict[str, Any]:
    """Scroll down, and measure the time, the page size and the heap."""
    before, start = meter.main_thread, time.perf_counter()
    _scroll_to(page, SCROLL_ROWS)
    return {
        f"to row {SCROLL_ROWS:,}, s": round(time.perf_counter() - start, 1),
        "CPU of the main thread for it, s": round(meter.main_thread - before, 1),
        f"rows in the page after {SCROLL_ROWS:,}": page.locator(_ROWS).count(),
        f"nodes after {SCROLL_ROWS:,}": page.evaluate("document.querySelectorAll('*').length"),
        "heap, MiB": round(meter.heap / (1 << 20), 1),
    }


def _scroll_to(page: Page, row: int) -> None:
    """Scroll until a row exists. Raise an error if the list does not grow within the timeout."""
    last, grown_at = 0, time.perf_counter()
    while last < row:
        before, last = last, page.locator(_ROWS).evaluate_all(_LAST)
        now = time.perf_counter()
        if last > before:
            grown_at = now
        elif now - grown_at > TIMEOUT_MS / 1000:
            raise RuntimeError(f"the list ends at row {last:,}")
        page.locator(_ROWS).first.evaluate(_SCROLL)
        page.wait_for_timeout(50)


def _measure_live_updates(
    page: Page, meter: BrowserMeter, gateway: ReportingGateway, seconds: int
) -> dict[str, Any]:
    """Measure the load of the main thread with and without reports, for the list and for one device."""
    first = gateway.devices[0]
    _show(page, f"/devices?Gateway={gateway.mac}", _ROWS)
    idle_share = meter.share(lambda: page.wait_for_timeout(seconds * 1000))
    before = page.locator("tbody").inner_text()
    list_share = meter.share(lambda: gateway.report(page, gateway.devices, seconds))
    if page.locator("tbody").inner_text() == before:
        raise RuntimeError("no report reached the page")
    rate = gateway.rate
    _show(page, f"/devices/{to_device_id(first)}", "h1")
    device_share = meter.share(lambda: gateway.report(page, [first], seconds))
    return {
        "reports a second, in fact": min(rate, gateway.rate),
        "main thread of the list, %": list_share,
        "the same without reports, %": idle_share,
        "main thread of the page of a device that sends all of them, %": device_share,
    }


def _show(page: Page, path: str, selector: str) -> None:
    page.goto(path)
    page.locator(selector).first.wait_for()
    page.wait_for_load_state("networkidle")


class ReportingGateway:
    """Connected gateway of the fleet that publishes RSSI reports."""

    def __init__(self, mqtt: Mqtt, mac: Mac, devices: Sequence[Mac]) -> None:
        self._mqtt = mqtt
        self.mac = mac
        self.devices = devices
        self.rate = 0.0
        """Reports per second of the last run; a busy machine may not reach the intended rate."""

    def report(self, page: Page, devices: Sequence[Mac], seconds: int) -> None:
        """Publish reports of the devices in turns at an even rate; a late report is sent without a pause."""
        start = time.perf_counter()
        for number in range(seconds * RATE):
            now = format_millis(int(time.time() * 1000))
            body = {"time": now, "parent": self.mac, "rssi": -50 - number % 30}
            topic = ReportTopic(self.mac, devices[number % len(devices)], Kind.RSSI)
            self._mqtt.publish(str(topic), json.dumps(body), qos=1)
            pause = start + (number + 1) / RATE - time.perf_counter()
            page.wait_for_timeout(max(0.0, pause) * 1000)
        self.rate = round(seconds * RATE / (time.perf_counter() - start), 1)


@contextmanager
def _connect_gateway(server: Server, size: int) -> Iterator[ReportingGateway]:
    """Claim the first gateway of the fleet, and connect it."""
    mac, *devices = (
        each.sighting.device for each, _ in zip(generate_members(size), range(GATEWAY_EVERY), strict=False)
    )
    claim = server.client.post("/api/v1/gateways", {"mac": mac}, status=201)
    mqtt = Mqtt(CallbackAPIVersion.VERSION2, mac)
    mqtt.username_pw_set(claim["username"], claim["password"])
    mqtt.connect("127.0.0.1", int(server.startup_info["mqtt"][0].rpartition(":")[2]))
    mqtt.loop_start()
    yield ReportingGateway(mqtt, mac, devices)
    mqtt.disconnect()
    mqtt.loop_stop()
