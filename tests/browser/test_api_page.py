"""Tests of the API page: both APIs are documented completely, and requests can be tried."""

from __future__ import annotations

import json
import re
import shlex
from typing import TYPE_CHECKING, Any

import pytest
from playwright.sync_api import expect

from meshfleet.rest.accounts import Role
from tests.browser.axe import find_violations
from tests.browser.conftest import wait_for_responses
from tests.scenarios.service_process import PASSWORD

if TYPE_CHECKING:
    from collections.abc import Callable

    from playwright.sync_api import Locator, Page

    from tests.browser.browser_log import BrowserLog
    from tests.scenarios.service_process import ServiceProcess

    Open = Callable[..., Page]

PAGE = "/api/docs"
MESSAGING = f"{PAGE}?part=messaging"
STORED_DATA = "JSON.stringify([{...localStorage}, {...sessionStorage}, document.cookie, location.href])"
"""Everything that a browser stores for a page."""

TRIED_PATHS = ("/api/v1/auth/login", "/api/v1/auth/me", "/api/v1/devices/summary")

_OPERATIONS = "all => all.map(each => [each.querySelector('.opblock-summary-method').textContent, \
each.querySelector('[data-path]').dataset.path])"


def find_operation(page: Page, method: str, path: str) -> Locator:
    """Return an operation, found by attribute: Swagger UI breaks paths with invisible spaces."""
    return page.locator(".opblock").filter(
        has=page.locator(f'[data-path="{path}"]'), has_text=re.compile(f"^{method}")
    )


def execute_operation(page: Page, method: str, path: str, body: dict[str, str] | None = None) -> Locator:
    """Execute an operation and return its response. The search hides all others, which are slow to render."""
    page.get_by_label("Search operations").fill(path)
    found = find_operation(page, method, path)
    found.locator("button.opblock-summary-control").click()
    found.get_by_role("button", name="Try it out").click()
    if body is not None:
        found.get_by_label("Request body").fill(json.dumps(body))
    found.get_by_role("button", name="Execute").click()
    return found.locator(".live-responses-table .response")


def token_card(page: Page) -> Locator:
    return page.get_by_role("region", name="Try requests")


def code_sample(page: Page, caption: str) -> Locator:
    return page.get_by_role("group", name=caption, exact=True)


def swagger_requests(browser_log: BrowserLog) -> list[str]:
    """Return the requests for the bundle of Swagger UI."""
    return [each for each in browser_log.requests if re.search(r"/assets/reference-[\w-]+[.]js$", each)]


@pytest.mark.part("long")
def test_every_operation_is_listed(page: Page, demo: ServiceProcess, browser_log: BrowserLog) -> None:
    page.goto(PAGE)
    expect(page.get_by_role("heading", level=1)).to_have_text("API")
    document = demo.call("GET", "/api/v1/openapi.json")
    wanted = {(method.upper(), path) for path, there in document["paths"].items() for method in there}
    shown = page.locator(".opblock")
    expect(shown).to_have_count(len(wanted))
    assert {tuple(each) for each in shown.evaluate_all(_OPERATIONS)} == wanted
    page.get_by_label("Search operations").fill("/rejects")
    expect(shown).to_have_count(1)
    assert swagger_requests(browser_log)


@pytest.fixture
def small_document(page: Page, demo: ServiceProcess) -> None:
    """Show only the operations that are tried: rendering all takes many seconds."""
    document = demo.call("GET", "/api/v1/openapi.json")
    small = {**document, "paths": {path: document["paths"][path] for path in TRIED_PATHS}}
    page.route("**/api/v1/openapi.json", lambda route: route.fulfill(json=small))


@pytest.mark.usefixtures("small_document")
@pytest.mark.rule("auth-31", "rest-163")
def test_a_token_is_kept_in_memory_only(open_as: Open, browser_log: BrowserLog) -> None:
    page = open_as(PAGE)
    expect(page.locator(".opblock")).to_have_count(len(TRIED_PATHS))
    assert swagger_requests(browser_log)
    browser_log.expect(401)
    card = token_card(page)
    expect(card).to_contain_text("after a reload you have to enter it again")
    card.get_by_label("API key or token").fill("not-a-valid-token")
    card.get_by_role("button", name="Use token").click()
    expect(card.get_by_role("status")).to_contain_text("with the token that you entered")
    expect(execute_operation(page, "GET", "/api/v1/devices/summary")).to_contain_text("401")
    assert "not-a-valid-token" not in page.evaluate(STORED_DATA) + page.content()
    page.reload()
    expect(card.get_by_role("status")).to_have_text("Requests are sent without a token.")
    expect(card.get_by_label("API key or token")).to_have_value("")
    # The session of the console is unaffected.
    expect(page.get_by_role("navigation", name="Pages")).to_be_visible()


@pytest.mark.part("long")
@pytest.mark.usefixtures("small_document")
def test_operations_are_tried_with_the_token_of_a_login(page: Page) -> None:
    page.goto(PAGE)
    expect(page.get_by_role("heading", level=1)).to_have_text("API")
    expect(page.locator(".opblock")).to_have_count(len(TRIED_PATHS))

    # Without a session, the login operation provides the token.
    credentials = {"username": "admin", "password": PASSWORD}
    expect(execute_operation(page, "POST", "/api/v1/auth/login", credentials)).to_contain_text("200")
    expect(token_card(page).get_by_role("status")).to_contain_text("with the token from the login operation")
    expect(execute_operation(page, "GET", "/api/v1/auth/me")).to_contain_text('"username": "admin"')
    assert "meshfleet.token" not in page.evaluate(STORED_DATA)
    page.get_by_role("link", name="Sign in").click()
    page.get_by_label("User name").fill("admin")
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("navigation", name="Pages")).to_be_visible()
    expect(page.get_by_role("heading", level=1)).to_have_text("API")

    # Use the token of the session.
    card = token_card(page)
    card.get_by_role("button", name="Try with my session").click()
    expect(card.get_by_role("status")).to_contain_text("as admin")
    answer = execute_operation(page, "GET", "/api/v1/auth/me")
    expect(answer).to_contain_text("200")
    expect(answer).to_contain_text('"username": "admin"')
    token = page.evaluate("sessionStorage.getItem('meshfleet.token')")
    assert token
    assert token not in page.content()
    expect(page.locator(".opblock")).to_have_count(1)
    assert find_violations(page) == []


@pytest.mark.part("long")
@pytest.mark.rule("rest-163")
def test_every_channel_is_described_with_its_messages(
    page: Page, demo: ServiceProcess, browser_log: BrowserLog
) -> None:
    # Loading a document can be retried.
    browser_log.expect("net::ERR_FAILED")
    page.route("**/api/v1/asyncapi.json", lambda route: route.abort())
    page.goto(MESSAGING)
    problem = page.get_by_role("alert")
    expect(problem).to_contain_text("did not answer")
    expect(page.get_by_role("link", name="asyncapi.json")).to_have_attribute("href", "/api/v1/asyncapi.json")
    page.unroute("**/api/v1/asyncapi.json")
    problem.get_by_role("button", name="Try again").click()
    expect(page.get_by_role("navigation", name="Channels")).to_be_visible()

    document = demo.call("GET", "/api/v1/asyncapi.json")
    channels: dict[str, dict[str, Any]] = document["channels"]
    expect(
        page.get_by_role("cell", name="mt/gateway/").or_(page.get_by_role("cell", name="meshtech/"))
    ).to_have_count(sum("/gateways/" not in each["address"] for each in channels.values()))
    expect(page.get_by_role("cell", name=next(iter(document["servers"].values()))["host"])).to_be_visible()
    jump = page.get_by_role("navigation", name="Channels")
    expect(jump.get_by_role("listitem")).to_have_count(len(channels))
    seen: set[str] = set()
    for channel in channels.values():
        jump.get_by_role("link", name=channel["title"], exact=True).click()
        expect(page.get_by_role("region", name=channel["title"])).to_contain_text(channel["address"])
        for name in channel["messages"]:
            _check_message(page, document, name)
            seen.add(name)
        _check_code_samples(page)
    assert seen == set(document["components"]["messages"])
    assert page.evaluate("document.scrollingElement.scrollTop") == 0  # the page around it does not scroll
    # The messaging part does not load Swagger UI.
    wait_for_responses(page, browser_log)
    assert swagger_requests(browser_log) == []


def _check_message(page: Page, document: dict[str, Any], name: str) -> None:
    message = document["components"]["messages"][name]
    shown = page.get_by_role("region", name=f"Message: {name}")
    schema = document["components"]["schemas"][message["payload"]["$ref"].rpartition("/")[2]]
    texts = set(
        shown.evaluate("region => [...region.querySelectorAll('*')].map(each => each.textContent.trim())")
    )
    assert set(schema["properties"]) <= texts, name
    for index, example in enumerate(message["examples"], 1):
        text = shown.get_by_label(f"Example {index}", exact=True).text_content()
        assert json.loads(text or "") == example["payload"]


def _check_code_samples(page: Page) -> None:
    """Check that a shell or Python can parse the code samples."""
    lines = page.get_by_role("region", name="Ready-to-use commands")
    for text in lines.locator("pre").all_text_contents():
        if text.startswith("import "):
            compile(text, "line", "exec")
        else:
            words = shlex.split(text.replace("\\\n", " "))
            assert words[0] in {"mosquitto_sub", "mosquitto_pub"}
            assert "{" not in words[words.index("-t") + 1]


def test_code_samples_contain_the_filled_in_values(open_as: Open) -> None:
    page = open_as(f"{MESSAGING}&channel=request-read-decoded", Role.OPERATOR)
    page.get_by_label("Value of gateway").fill("02005e000001")
    page.get_by_label("Value of name").fill("it's")
    published = code_sample(page, "Publish, as an operator").text_content() or ""
    words = shlex.split(published.replace("\\\n", " "))
    assert words[words.index("-t") + 1].startswith("mt/gateway/02005e000001/request/")
    assert words[words.index("-t") + 1].endswith("/read-decoded/it's")
    assert words[words.index("-u") + 1] == "operator"
    expect(code_sample(page, "Python")).to_contain_text('mesh.read("02005e000001"')
    # The channel of the responses uses the same gateway.
    page.get_by_role("link", name="Response read decoded").first.click()
    expect(code_sample(page, "Read, as a viewer")).to_contain_text("mt/gateway/02005e000001/response/+/")
    # There is no example for an identifier or value to write.
    page.get_by_role("navigation", name="Channels").get_by_role(
        "link", name="Request write", exact=True
    ).click()
    expect(code_sample(page, "Publish, as an operator")).to_contain_text("/write/IDENTIFIER")
    expect(code_sample(page, "Publish, as an operator")).to_contain_text('"value":"VALUE"')
