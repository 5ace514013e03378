"""What a test sees of the list of devices."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import parse_qs, urlsplit

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

    from tests.browser.browser_log import BrowserLog


def rows(page: Page) -> Locator:
    """The rows that are drawn; what only keeps room for others is none to whoever listens."""
    return page.get_by_role("table").locator("tbody").get_by_role("row")


def names(page: Page) -> list[str]:
    return rows(page).get_by_role("rowheader").get_by_role("link").all_inner_texts()


def search_box(page: Page) -> Locator:
    return page.get_by_role("searchbox", name="Search by name")


def list_queries(watch: BrowserLog) -> list[dict[str, list[str]]]:
    """The queries with which devices were listed."""
    asked = [urlsplit(each.removeprefix("GET ")) for each in watch.requests if each.startswith("GET ")]
    return [parse_qs(each.query) for each in asked if each.path == "/api/v1/devices"]


def page_queries(watch: BrowserLog) -> list[dict[str, list[str]]]:
    """Those with which a page of the list was read; others look again at devices that they name."""
    return [each for each in list_queries(watch) if "Ids" not in each]


def visible_ids(page: Page) -> list[str]:
    """The devices whose rows can be seen at least in part, from the top."""
    found: list[str] = page.get_by_role("region", name="Devices").evaluate("""region => {
        const head = region.querySelector("thead th").getBoundingClientRect().bottom;
        const end = region.getBoundingClientRect().top + region.clientHeight;
        return [...region.querySelectorAll("tbody tr[aria-rowindex]")]
          .filter(row => row.getBoundingClientRect().bottom > head && row.getBoundingClientRect().top < end)
          .map(row => decodeURIComponent(row.querySelector("th a").pathname.split("/").pop()));
    }""")
    return found
