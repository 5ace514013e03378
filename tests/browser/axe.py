"""Accessibility checks of a page with axe-core."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Final, Literal

from playwright.sync_api import expect

from tests.external_tools import AXE, require

if TYPE_CHECKING:
    from collections.abc import Mapping

    from playwright.sync_api import Page

Theme = Literal["light", "dark"]

_ALL_RULES: Final = {
    "type": "tag",
    "values": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"],
}
_COLOR_RULES: Final = {"type": "rule", "values": ["color-contrast", "link-in-text-block"]}
"""Rules that another theme can break: it changes nothing but colors."""

_THEMES: Final[Mapping[Theme, Mapping[str, object]]] = {"light": _ALL_RULES, "dark": _COLOR_RULES}

_RUN = """
async rules => {
  const only = {runOnly: rules, resultTypes: ['violations'], preload: false};
  const {violations} = await axe.run(document.querySelector("dialog[open]") ?? document, only);
  return violations.flatMap(each => each.nodes.map(node => `${each.id}: ${node.html}`));
}
"""


@cache
def _source() -> str:
    return (require(AXE) / "axe.min.js").read_text("utf-8")


def find_violations(page: Page) -> list[str]:
    """Return the violations that axe finds; of an open dialog only, since it covers the page behind it."""
    return _run_axe(page, _ALL_RULES)


def _run_axe(page: Page, rules: Mapping[str, object]) -> list[str]:
    """Run axe. Its source is evaluated, since the content security policy blocks scripts."""
    if not page.evaluate("'axe' in window"):
        page.evaluate(_source())
    found: list[str] = page.evaluate(_RUN, rules)
    return found


def find_violations_in_all_themes(page: Page) -> list[str]:
    """Return the violations in both themes; the page follows the preference of its browser."""
    found: list[str] = []
    for theme, rules in _THEMES.items():
        page.emulate_media(color_scheme=theme)
        expect(page.locator("html")).to_have_attribute("data-theme", theme)
        found += [f"{theme}: {each}" for each in _run_axe(page, rules)]
    return found
