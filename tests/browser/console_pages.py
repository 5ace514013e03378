"""Pages of the console: their paths and headings."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, NamedTuple
from uuid import uuid4

from meshfleet.rest.alarms import AlarmSeverity
from tests.browser.alarm_bodies import build_alarm
from tests.browser.demo_firmware import FLEET_MODEL, uploaded_firmware
from tests.browser.demo_plans import plan_site
from tests.browser.demo_sites import finish_job, new_version
from tests.browser.device_page import TRACKER

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.scenarios.service_process import ServiceProcess

PAGES: Final = {
    "/": "Overview",
    "/alarms": "Alarms",
    "/devices": "Devices",
    "/devices/bmac-02005e000001": "Head office",
    "/gateways": "Gateways",
    "/gateways/02005e000001": "Head office",
    "/topology?Gateway=02005e000001": "Topology",
    "/sites": "Sites",
    "/labels": "Labels",
    "/jobs": "Update jobs",
    "/jobs/new": "New update job",
    "/firmware": "Firmware",
    "/messages": "Messages",
    "/rejects": "Rejected reports",
    "/api/docs": "API",
    "/api/docs?part=messaging": "API",
    "/settings/channels": "Notifications",
    "/people": "People",
    "/keys": "API keys",
    "/audit": "Audit log",
}
"""Headings of the pages that always exist, by path."""

_FILTERED_PATHS: Final = {
    "/audit": "/audit?Action=gateway.claim",
    "/messages": f"/messages?Ids={TRACKER}",
}
"""Filtered paths of pages that grow while other tests run: all their rows are rendered alike."""

RECORD_PAGES: Final = ("/alarms/:id", "/firmware/:id", "/jobs/:id", "/sites/:id")
"""Pages of records that a test creates."""

LONG_WORD: Final = "x" * 100
"""Word that fits nowhere and cannot be broken."""
LONG_NAME: Final = LONG_WORD[:64]
"""Longest name of a site."""

ALARMS: Final = tuple(
    build_alarm(number, severity=severity, sentence=f"Gateway {LONG_WORD} is offline.")
    for number, severity in enumerate(AlarmSeverity, 1)
)
"""Alarms with which a tab is to be answered: real ones open after minutes."""


class ConsolePage(NamedTuple):
    """Page that exists."""

    address: str
    heading: str


@contextmanager
def open_console_page(demo: ServiceProcess, path: str) -> Iterator[ConsolePage]:
    """Yield a page of `PAGES` or `RECORD_PAGES`; its record exists until the block ends."""
    if path == "/alarms/:id":
        yield ConsolePage(f"/alarms/{ALARMS[0].id}", ALARMS[0].sentence)
    elif path == "/firmware/:id":
        version = f"9{new_version()}"
        with uploaded_firmware(demo, FLEET_MODEL, version, is_released=True, notes=LONG_WORD) as firmware:
            yield ConsolePage(f"/firmware/{firmware}", f"MT Wristband 211 {version}")
    elif path == "/sites/:id":
        with plan_site(demo, LONG_NAME) as site:
            yield ConsolePage(f"/sites/{site.site}?view=survey", LONG_NAME)
    elif path == "/jobs/:id":
        (firmware, *_) = demo.call("GET", "/api/v1/firmware?State=released&ModelNumber=0018")["items"]
        name = f"{uuid4().hex[:8]} {LONG_WORD}"
        order = {"name": name, "firmwareId": firmware["id"], "targets": {"all": True}, "autoApply": False}
        made = demo.call("POST", "/api/v1/jobs", order)["id"]
        try:
            yield ConsolePage(f"/jobs/{made}", name)
        finally:
            finish_job(demo, made)
    else:
        yield ConsolePage(_FILTERED_PATHS.get(path, path), PAGES[path])
