"""axe-core looks at a page: what it finds would keep somebody out."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Final, Literal

from playwright.sync_api import expect

from tests.parts import AXE, need

if TYPE_CHECKING:
    from collections.abc import Mapping

    from playwright.sync_api import Page

Theme = Literal["light", "dark"]

_ALL: Final = {
    "type": "tag",
    "values": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"],
}
_COLOURS: Final = {"type": "rule", "values": ["color-contrast", "link-in-text-block"]}
"""What another theme can break: it changes nothing but colours."""

_THEMES: Final[Mapping[Theme, Mapping[str, object]]] = {"light": _ALL, "dark": _COLOURS}

_RUN = """
async rules => {
  const only = {runOnly: rules, resultTypes: ['violations'], preload: false};
  const {violations} = await axe.run(document.querySelector("dialog[open]") ?? document, only);
  return violations.flatMap(each => each.nodes.map(node => `${each.id}: ${node.html}`));
}
"""


@cache
def _source() -> str:
    return (need(AXE) / "axe.min.js").read_text("utf-8")


def barriers(page: Page) -> list[str]:
    """What axe objects to, and where: in a dialog alone, if one is open: nobody gets to what is behind it."""
    return _found(page, _ALL)


def _found(page: Page, rules: Mapping[str, object]) -> list[str]:
    """Evaluate axe, since the policy of the page lets no script in."""
    if not page.evaluate("'axe' in window"):
        page.evaluate(_source())
    found: list[str] = page.evaluate(_RUN, rules)
    return found


def barriers_in_any_theme(page: Page) -> list[str]:
    """What axe objects to in either theme: a page follows what its browser prefers."""
    found: list[str] = []
    for theme, rules in _THEMES.items():
        page.emulate_media(color_scheme=theme)
        expect(page.locator("html")).to_have_attribute("data-theme", theme)
        found += [f"{theme}: {each}" for each in _found(page, rules)]
    return found
