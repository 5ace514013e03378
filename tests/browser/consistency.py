"""Checks that the parts of a page agree with each other at each moment."""

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
"""Calls `look` before the page is painted, if something has changed: each frame would take a whole core."""

_COMPARE_JOB_PAGE = """() => {
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
"""Compare the parts of a job page each time it is painted with a change."""


_COMPARE_CONNECTION_STATE = """() => {
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
"""Compare the top bar with the navigation each time the page is painted with a change."""


def watch_job_page(page: Page) -> None:
    """Start comparing the parts of a job page with each other."""
    page.evaluate(_COMPARE_JOB_PAGE.replace("LOOKING", OBSERVE_CHANGES))


def watch_connection_state(page: Page) -> None:
    """Start comparing the connection state in the bar with the service state in the navigation."""
    page.evaluate(_COMPARE_CONNECTION_STATE.replace("LOOKING", OBSERVE_CHANGES))


def list_contradictions(page: Page) -> list[str]:
    """Return the contradictions found since the comparison started."""
    found: list[str] = page.evaluate("[...window.moments.faults]")
    return found


def list_compared_texts(page: Page) -> list[str]:
    """Return all compared texts: what devices wait for, or states of the connection."""
    found: list[str] = page.evaluate("[...window.moments.told]")
    return found
