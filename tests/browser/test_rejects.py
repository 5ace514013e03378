"""Rejected reports in the console: what came, why it was not taken, and what it was."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import expect

from tests.browser.axe import barriers
from tests.browser.conftest import visit
from tests.browser.gateways import connected, new_mac
from tests.service.requests.third_party import Said

if TYPE_CHECKING:
    from tests.browser.conftest import Open
    from tests.scenarios.serving import Service

_RUBBISH = '<img src="x" onerror="alert(1)">\u0007'


@pytest.mark.rule("rest-96")
def test_a_rejected_report_is_told_with_its_reason(open_as: Open, demo: Service) -> None:
    with new_mac(demo) as mac:
        password = demo.claim(mac).password
        page = open_as(f"/rejects?Gateway={mac.upper()}")
        expect(page.get_by_text("good news")).to_be_visible()
        with connected(demo, mac, password) as gateway:
            front = f"mt/gateway/{mac}/device/ca5bda1a0002"
            gateway.say(Said(f"{front}/heartbeat", _RUBBISH.encode()))
            page.get_by_role("button", name="1 new").click()
            rows = page.get_by_role("row").filter(has=page.get_by_role("button"))
            expect(rows).to_have_count(1)
            expect(rows).to_contain_text("The payload cannot be read")
            expect(rows).to_contain_text(f"{front}/heartbeat")
            gateway.say(Said(f"{front}/gossip", b"{}"))
            expect(page.get_by_role("button", name="1 new")).to_be_visible()
            expect(rows).to_have_count(1)  # nothing jumps

        rows.get_by_role("button", name="Show payload").click()
        expect(page.locator("pre")).to_have_text(_RUBBISH.replace("\u0007", "\u2407"))
        assert barriers(page) == []
        page.get_by_role("button", name="1 new").click()
        expect(rows).to_have_count(2)
        expect(rows.first).to_contain_text("The kind of report is unknown")

        page.get_by_role("button", name="All gateways").click()
        expect(page).to_have_url(f"{demo.url}/rejects")
        visit(page, f"/gateways/{mac}")
        expect(page.get_by_role("region", name="Rejected reports")).to_contain_text(
            "The kind of report is unknown"
        )
