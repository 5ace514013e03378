"""Every page of the console: where it is, and what its heading says."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, NamedTuple
from uuid import uuid4

from tests.browser.device import TRACKER
from tests.browser.firmware import FLEET, record
from tests.browser.updates import finish, new_version

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.scenarios.serving import Service

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

_FEW: Final = {
    "/audit": "/audit?Action=gateway.claim",
    "/messages": f"/messages?Ids={TRACKER}",
}
"""Where those are looked at that fill with rows while other tests run: all rows are drawn alike."""

RECORDS: Final = ("/firmware/:id", "/jobs/:id")
"""Those of what a test makes."""

LONG: Final = "x" * 100
"""A word that does not fit anywhere, and has no place to be broken at."""


class Place(NamedTuple):
    """A page that is there."""

    address: str
    heading: str


@contextmanager
def place(demo: Service, path: str) -> Iterator[Place]:
    """A page of `PAGES` or `RECORDS`: it is there for as long as this lasts."""
    if path == "/firmware/:id":
        version = f"9{new_version()}"
        with record(demo, FLEET, version, is_released=True, notes=LONG) as firmware:
            yield Place(f"/firmware/{firmware}", f"MT Wristband 211 {version}")
    elif path == "/jobs/:id":
        (firmware, *_) = demo.ask("GET", "/api/v1/firmware?State=released&ModelNumber=0018")["items"]
        name = f"{uuid4().hex[:8]} {LONG}"
        order = {"name": name, "firmwareId": firmware["id"], "targets": {"all": True}, "autoApply": False}
        made = demo.ask("POST", "/api/v1/jobs", order)["id"]
        try:
            yield Place(f"/jobs/{made}", name)
        finally:
            finish(demo, made)
    else:
        yield Place(_FEW.get(path, path), PAGES[path])
