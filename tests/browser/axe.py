"""axe-core looks at a page: what it finds would keep somebody out."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Final, Literal

from playwright.sync_api import expect

from tests.parts import AXE, need

if TYPE_CHECKING:
    from playwright.sync_api import Page

Theme = Literal["light", "dark"]

_THEMES: Final[tuple[Theme, ...]] = ("light", "dark")

_RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
_RUN = """
async rules => {
  const only = {runOnly: {type: 'tag', values: rules}, resultTypes: ['violations']};
  const {violations} = await axe.run(document.querySelector("dialog[open]") ?? document, only);
  return violations.flatMap(each => each.nodes.map(node => `${each.id}: ${node.html}`));
}
"""


@cache
def _source() -> str:
    return (need(AXE) / "axe.min.js").read_text("utf-8")


def barriers(page: Page) -> list[str]:
    """What axe objects to, and where: in a dialog alone, if one is open, as nobody gets to what is behind it.

    It is evaluated, since the policy of the page lets no script in.
    """
    if not page.evaluate("'axe' in window"):
        page.evaluate(_source())
    found: list[str] = page.evaluate(_RUN, _RULES)
    return found


def barriers_in_any_theme(page: Page) -> list[str]:
    """What axe objects to in either theme: a page follows what its browser prefers."""
    found: list[str] = []
    for theme in _THEMES:
        page.emulate_media(color_scheme=theme)
        expect(page.locator("html")).to_have_attribute("data-theme", theme)
        found += [f"{theme}: {each}" for each in barriers(page)]
    return found
