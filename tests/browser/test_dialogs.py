"""Tests of dialogs by keyboard: focus on opening and closing."""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import uuid4

from playwright.sync_api import expect

if TYPE_CHECKING:
    from playwright.sync_api import Page

    from tests.browser.conftest import Open

_COVERED_CONTROLS = """(told) => {
  const {left, right, top, bottom} = told.getBoundingClientRect();
  const {top: first} = document.querySelector("main").getBoundingClientRect();
  return [...document.querySelectorAll("main :is(a, button, input), nav a")].filter((control) => {
    const box = control.getBoundingClientRect();
    const highest = control.closest("main") ? Math.max(box.top, first) : box.top;
    const isSeen = box.width > 0 && box.bottom > highest;
    return isSeen && box.left < right && box.right > left && highest < bottom && box.bottom > top;
  }).map((control) => control.textContent);
}"""
"""Controls that a message covers, without those scrolled out of view."""


def test_text_typed_right_after_opening_goes_to_the_field(open_as: Open, page: Page) -> None:
    open_as("/devices/bmac-02005e000002")
    rename = page.get_by_role("button", name="Rename")
    rename.click()
    page.keyboard.type(" ward 7 ")
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_label("Name", exact=True)).to_be_focused()
    assert " ward 7 " in dialog.get_by_label("Name", exact=True).input_value()
    page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)
    expect(rename).to_be_focused()


def test_messages_cover_no_controls_and_the_safe_button_has_the_focus(open_as: Open, page: Page) -> None:
    open_as("/labels")
    for width in (390, 1440):
        label = uuid4().hex
        page.set_viewport_size({"width": width, "height": 844})
        page.get_by_role("button", name="New label").click()
        page.keyboard.type(label)
        page.keyboard.press("Enter")
        told = page.get_by_role("status").get_by_text(label)
        expect(told).to_be_visible()
        assert told.evaluate(_COVERED_CONTROLS) == [], width
        told.get_by_role("button", name="Close").click()
        expect(told).to_have_count(0)

        # Without a text field the safe button has the focus, and the page gets it back on closing.
        page.get_by_role("button", name=f"Remove {label}").click()
        dialog = page.get_by_role("dialog")
        expect(dialog.get_by_role("button", name="Cancel")).to_be_focused()
        dialog.get_by_role("button", name="Remove label").click()
        expect(page.get_by_role("row").filter(has_text=label)).to_have_count(0)
        expect(page.get_by_role("main")).to_be_focused()
