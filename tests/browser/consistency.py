"""Whether what a page shows belongs to the same moment: no part of it denies what another one says."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from playwright.sync_api import Page

OBSERVE_CHANGES: Final = """
  let isDue = false;
  const soon = () => {
    if (isDue) return;
    isDue = true;
    requestAnimationFrame(() => { isDue = false; look(); });
  };
  const all = { subtree: true, childList: true, characterData: true, attributes: true };
  new MutationObserver(soon).observe(document.documentElement, all);
  look();
"""
"""Calls `look` before the page is painted, if something has changed: frame by frame it takes a whole core."""

_COMPARE = """() => {
  const region = (name) => document.querySelector(`section[aria-label="${name}"]`);
  const card = (name) => [...document.querySelectorAll("section")].find(
    (each) => each.querySelector("h2")?.textContent === name);
  const first = (text) => Number(/\\d+/.exec(text ?? "")?.[0] ?? 0);
  const sum = (numbers) => numbers.reduce((total, each) => total + each, 0);
  const texts = (parts) => [...(parts ?? [])].map((each) => each.textContent.trim());
  const faults = () => {
    const queued = first(region("Progress")?.querySelector('[data-state="QUEUED"]')?.textContent);
    const lines = texts(region("What it waits for")?.querySelectorAll("li"));
    const behind = texts(card("Gateways")?.querySelectorAll("li p span"))
      .filter((each) => each.endsWith("waiting"));
    const waiting = new Set([...(card("Waves")?.querySelectorAll("li") ?? [])]
      .filter((each) => each.textContent.includes("Waiting"))
      .map((each) => each.querySelector(".name").textContent.trim().replace(/^Wave /, "")));
    const rows = [...document.querySelectorAll("tr[data-device]")]
      .map((each) => texts(each.children).slice(1, 4));
    for (const line of lines) window.moments.told.add(line);
    return [
      lines.length > 0 && sum(lines.map(first)) !== queued && `of ${queued} queued: ${lines}`,
      card("Gateways") && sum(behind.map(first)) !== queued && `of ${queued} queued, at gateways: ${behind}`,
      waiting.size === 0 && lines.find((each) => each.includes("wave")),
      ...rows.map(([word, why, wave]) => {
        const isFalse = word === "Queued" ? why.includes("wave") && !waiting.has(wave) : waiting.has(wave);
        return isFalse && `${word} in wave ${wave}, waiting are ${[...waiting]}: ${why}`;
      }),
    ].filter(Boolean);
  };
  window.moments = { faults: new Set(), told: new Set() };
  const look = () => {
    for (const fault of faults()) window.moments.faults.add(fault);
  };
  LOOKING
}"""
"""Compare the parts whenever the page is painted with something new."""


_CONNECTION = """() => {
  const said = (place) => document.querySelector(`${place} [role=status]`)?.textContent.trim() ?? "";
  window.moments = { faults: new Set(), told: new Set() };
  const look = () => {
    const [bar, foot] = [said("header"), said("nav")];
    window.moments.told.add(bar);
    window.moments.told.add(foot);
    const isThere = ["Live", "No traffic yet"].includes(bar);
    const isAway = foot === "Service cannot be reached";
    const isFalse = isThere ? isAway : bar.startsWith("Checking") && foot !== bar;
    if (isFalse) window.moments.faults.add(`${bar}, ${foot}`);
  };
  LOOKING
}"""
"""Compare both whenever the page is painted with something new."""


def watch_job_page(page: Page) -> None:
    """Compare the parts of a job's page with each other from now on."""
    page.evaluate(_COMPARE.replace("LOOKING", OBSERVE_CHANGES))


def watch_connection_state(page: Page) -> None:
    """Compare what the bar says of the connection with what the navigation says of the service."""
    page.evaluate(_CONNECTION.replace("LOOKING", OBSERVE_CHANGES))


def contradictions(page: Page) -> list[str]:
    """What one part said and another one denied, since the comparison began."""
    found: list[str] = page.evaluate("[...window.moments.faults]")
    return found


def compared_texts(page: Page) -> list[str]:
    """All that was compared: lines about what devices wait for, or states of the connection."""
    found: list[str] = page.evaluate("[...window.moments.told]")
    return found
