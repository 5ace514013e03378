"""Every page of the console: where it is, and what its heading says."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, NamedTuple
from uuid import uuid4

from tests.browser.demo_firmware import FLEET_MODEL, uploaded_firmware
from tests.browser.demo_sites import finish_job, new_version
from tests.browser.device_page import TRACKER

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.scenarios.service_process import ServiceProcess

PAGES: Final = {
    "/": "Overview",
    "/devices": "Devices",
    "/devices/bmac-02005e000001": "Head office",
    "/gateways": "Gateways",
    "/gateways/02005e000001": "Head office",
    "/labels": "Labels",
    "/jobs": "Update jobs",
    "/jobs/new": "New update job",
    "/firmware": "Firmware",
    "/messages": "Messages",
    "/rejects": "Rejected reports",
    "/api/docs": "API",
    "/api/docs?part=messaging": "API",
    "/people": "People",
    "/keys": "API keys",
    "/audit": "Audit log",
}
"""Those that are always there, each with its heading."""

_FILTERED_PATHS: Final = {
    "/audit": "/audit?Action=gateway.claim",
    "/messages": f"/messages?Ids={TRACKER}",
}
"""Where those are looked at that fill with rows while other tests run: all rows are drawn alike."""

RECORD_PAGES: Final = ("/firmware/:id", "/jobs/:id")
"""Those of what a test makes."""

LONG_WORD: Final = "x" * 100
"""A word that does not fit anywhere, and has no place to be broken at."""


class ConsolePage(NamedTuple):
    """A page that is there."""

    address: str
    heading: str


@contextmanager
def open_console_page(demo: ServiceProcess, path: str) -> Iterator[ConsolePage]:
    """A page of `PAGES` or `RECORDS`: it is there for as long as this lasts."""
    if path == "/firmware/:id":
        version = f"9{new_version()}"
        with uploaded_firmware(demo, FLEET_MODEL, version, is_released=True, notes=LONG_WORD) as firmware:
            yield ConsolePage(f"/firmware/{firmware}", f"MT Wristband 211 {version}")
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
