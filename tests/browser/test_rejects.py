"""Tests of the page of rejected reports."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import expect

from tests.browser.axe import find_violations
from tests.browser.conftest import visit
from tests.browser.demo_gateways import connected_gateway, new_mac
from tests.service.requests.scripted_gateway import OutgoingMessage

if TYPE_CHECKING:
    from tests.browser.conftest import Open
    from tests.scenarios.service_process import ServiceProcess

_INVALID_REPORT = '<img src="x" onerror="alert(1)">\u0007'


@pytest.mark.rule("rest-96")
def test_a_rejected_report_is_shown_with_its_reason(open_as: Open, demo: ServiceProcess) -> None:
    with new_mac(demo) as mac:
        password = demo.claim(mac).password
        page = open_as(f"/rejects?Gateway={mac.upper()}")
        expect(page.get_by_text("No rejected reports of this gateway")).to_be_visible()
        with connected_gateway(demo, mac, password) as gateway:
            front = f"mt/gateway/{mac}/device/ca5bda1a0002"
            gateway.publish(OutgoingMessage(f"{front}/heartbeat", _INVALID_REPORT.encode()))
            page.get_by_role("button", name="1 new").click()
            rows = page.get_by_role("row").filter(has=page.get_by_role("button"))
            expect(rows).to_have_count(1)
            expect(rows).to_contain_text("The payload cannot be read")
            expect(rows).to_contain_text(f"{front}/heartbeat")
            gateway.publish(OutgoingMessage(f"{front}/gossip", b"{}"))
            expect(page.get_by_role("button", name="1 new")).to_be_visible()
            expect(rows).to_have_count(1)  # rows do not move

        rows.get_by_role("button", name="Show payload").click()
        expect(page.locator("pre")).to_have_text(_INVALID_REPORT.replace("\u0007", "\u2407"))
        assert find_violations(page) == []
        page.get_by_role("button", name="1 new").click()
        expect(rows).to_have_count(2)
        expect(rows.first).to_contain_text("The kind of report is unknown")

        page.get_by_role("button", name="All gateways").click()
        expect(page).to_have_url(f"{demo.url}/rejects")
        visit(page, f"/gateways/{mac}")
        expect(page.get_by_role("region", name="Rejected reports")).to_contain_text(
            "The kind of report is unknown"
        )
