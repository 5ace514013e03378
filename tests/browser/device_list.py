"""Locators and queries of the device list."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import parse_qs, urlsplit

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

    from tests.browser.browser_log import BrowserLog


def rows(page: Page) -> Locator:
    """Return the rendered rows, without spacers, which are hidden from the accessibility tree."""
    return page.get_by_role("table").locator("tbody").get_by_role("row")


def names(page: Page) -> list[str]:
    return rows(page).get_by_role("rowheader").get_by_role("link").all_inner_texts()


def search_box(page: Page) -> Locator:
    return page.get_by_role("searchbox", name="Search by name")


def list_queries(browser_log: BrowserLog) -> list[dict[str, list[str]]]:
    """Return the query parameters of the requests that listed devices."""
    urls = [urlsplit(each.removeprefix("GET ")) for each in browser_log.requests if each.startswith("GET ")]
    return [parse_qs(each.query) for each in urls if each.path == "/api/v1/devices"]


def page_queries(browser_log: BrowserLog) -> list[dict[str, list[str]]]:
    """Return the queries that loaded a page of the list; other queries name the ids of devices to refresh."""
    return [each for each in list_queries(browser_log) if "Ids" not in each]


def visible_ids(page: Page) -> list[str]:
    """Return the ids of the devices whose rows are at least partly visible, from the top."""
    found: list[str] = page.get_by_role("region", name="Devices").evaluate("""region => {
        const head = region.querySelector("thead th").getBoundingClientRect().bottom;
        const end = region.getBoundingClientRect().top + region.clientHeight;
        return [...region.querySelectorAll("tbody tr[aria-rowindex]")]
          .filter(row => row.getBoundingClientRect().bottom > head && row.getBoundingClientRect().top < end)
          .map(row => decodeURIComponent(row.querySelector("th a").pathname.split("/").pop()));
    }""")
    return found
