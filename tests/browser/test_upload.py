"""Tests of firmware uploads: checks before, progress, and interruptions."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import TYPE_CHECKING

from playwright.sync_api import expect

from tests.browser.axe import find_violations
from tests.browser.conftest import wait_until
from tests.browser.demo_firmware import build_test_package, compress_package, delete_firmware, new_model

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

    from tests.browser.browser_log import BrowserLog
    from tests.browser.conftest import Open
    from tests.scenarios.service_process import ServiceProcess

_DROP = """([name, size]) => {
  const given = new DataTransfer();
  given.items.add(new File([new Uint8Array(size)], name));
  return given;
}"""

_LINE = {"offline": False, "latency": 0, "downloadThroughput": -1}


def upload_dialog(page: Page) -> Locator:
    page.get_by_role("button", name="Upload firmware").click()
    return page.get_by_role("dialog", name="Upload firmware")


def choose_image(asking: Locator, image: Path) -> None:
    """Choose an image and wait until model and version are filled in, before a test types others."""
    asking.get_by_label("Image", exact=True).set_input_files(image)
    expect(asking).to_contain_text(hashlib.sha256(image.read_bytes()).hexdigest())


def fill_fields(asking: Locator, model: str, version: str) -> None:
    asking.get_by_role("combobox", name="Model").fill(model)
    asking.get_by_role("textbox", name="Version", exact=True).fill(version)


def test_an_image_is_uploaded_and_shown(
    open_as: Open, demo: ServiceProcess, browser_log: BrowserLog, tmp_path: Path
) -> None:
    model = new_model()
    image = tmp_path / "motion.zip"
    image.write_bytes(compress_package(build_test_package(model, "3.4.2")))
    digest = hashlib.sha256(image.read_bytes()).hexdigest()
    page = open_as("/firmware")
    asking = upload_dialog(page)
    choose_image(asking, image)
    # Model and version are those of the package; the service refuses others.
    expect(asking.get_by_role("combobox", name="Model")).to_have_value(model)
    expect(asking.get_by_role("textbox", name="Version", exact=True)).to_have_value("3.4.2")
    fill_fields(asking, "0018", "3.4.2")
    asking.get_by_role("textbox", name="Hardware").fill("1.0, 2.1.0")
    asking.get_by_role("textbox", name="Notes").fill("Sees <b>more</b>.")
    assert find_violations(page) == []
    browser_log.expect(400)
    asking.get_by_role("button", name="Upload", exact=True).click()
    expect(asking).to_contain_text(f"The image is a package for model {model}; the record says 0018.")
    expect(asking.get_by_label("Image", exact=True)).to_be_focused()
    asking.get_by_role("combobox", name="Model").fill(model)
    asking.get_by_role("button", name="Upload", exact=True).click()
    try:
        expect(page.get_by_role("heading", level=1)).to_have_text(f"Model {model} 3.4.2")
        main = page.get_by_role("main")
        expect(main).to_contain_text("This is a draft")
        details = page.get_by_role("region", name="Details")
        for fact in (digest, "motion.zip", "1.0.0, 2.1.0", "Sees <b>more</b>.", "Nordic package"):
            expect(details).to_contain_text(fact)
        with page.expect_download() as saved:
            details.get_by_role("button", name="Download image").click()
        assert saved.value.suggested_filename == "motion.zip"
        assert Path(saved.value.path()).read_bytes() == image.read_bytes()
    finally:
        delete_firmware(demo, model)


def test_a_bare_image_is_recognized_and_a_failed_check_can_be_overridden(
    open_as: Open, demo: ServiceProcess, browser_log: BrowserLog, tmp_path: Path
) -> None:
    model = new_model()
    image = tmp_path / "hostname.bin"
    image.write_text("my-host")
    page = open_as("/firmware")
    asking = upload_dialog(page)
    insist = asking.get_by_role("checkbox", name="Upload anyway")
    bare = asking.get_by_role("checkbox", name="Bare image")
    upload = asking.get_by_role("button", name="Upload", exact=True)
    asking.get_by_label("Image", exact=True).set_input_files(image)
    expect(asking).to_contain_text("This is not a Nordic package (a zip file).")
    fill_fields(asking, model, "1.0.0")
    bare.check()
    expect(asking).not_to_contain_text("This is not a Nordic package")
    assert find_violations(page) == []
    browser_log.expect(400)
    upload.click()
    expect(asking).to_contain_text("does not look like a bare image of a Cortex-M chip: it has 7 bytes")
    insist.check()
    bare.uncheck()
    expect(insist).to_have_count(0)
    bare.check()
    browser_log.expect(400)
    upload.click()
    insist.check()
    try:
        upload.click()
        expect(page.get_by_role("heading", level=1)).to_have_text(f"Model {model} 1.0.0")
        expect(page.get_by_role("region", name="Details")).to_contain_text("Bare image")
    finally:
        delete_firmware(demo, model)


def test_errors_are_shown_before_anything_is_sent(open_as: Open, browser_log: BrowserLog) -> None:
    page = open_as("/firmware")
    asking = upload_dialog(page)
    zone = asking.get_by_text("choose a file")

    def drop(name: str, size: int) -> None:
        given = page.evaluate_handle(_DROP, [name, size])
        page.get_by_role("dialog").locator("label", has_text="choose").first.dispatch_event(
            "drop", {"dataTransfer": given}
        )

    expect(zone).to_be_visible()
    asking.get_by_role("button", name="Upload", exact=True).click()
    for wrong in ("Choose the image.", "A model has four hex digits", "Enter a version such as"):
        expect(asking).to_contain_text(wrong)
    expect(asking.get_by_label("Image", exact=True)).to_be_focused()
    drop("manual.pdf", 10)
    expect(asking).to_contain_text("manual.pdf is not an image: its name must end in .zip, .bin or .raucb.")
    drop("empty.zip", 0)
    expect(asking).to_contain_text("empty.zip is empty.")
    drop("huge.zip", 16 * 1024 * 1024 + 1)
    expect(asking).to_contain_text("a Nordic package has 16.0 MiB at most")
    drop("gateway.raucb", 16 * 1024 * 1024 + 1)
    expect(asking.get_by_role("combobox", name="Kind")).to_have_value("2")
    expect(asking).not_to_contain_text("at most")
    fill_fields(asking, "0018", "3.0.256")
    asking.get_by_role("textbox", name="Minimum version").fill("x")
    asking.get_by_role("textbox", name="Hardware").fill("1.0.0, 2.0.0-beta.1")
    asking.get_by_role("button", name="Upload", exact=True).click()
    expect(asking).to_contain_text("with numbers up to 255")
    expect(asking).to_contain_text("“2.0.0-beta.1” is not a hardware version")
    version = asking.get_by_role("textbox", name="Version", exact=True)
    expect(version).to_be_focused()
    expect(version).to_have_accessible_description(re.compile("numbers up to 255"))
    version.fill("3.0.0")
    expect(version).to_have_accessible_description("As its devices will report it.")
    asking.get_by_role("textbox", name="Minimum version").fill("3.0.1")
    expect(asking).to_contain_text("It is newer than the version itself.")
    assert not [each for each in browser_log.requests if each.startswith("POST /api/v1/firmware")]


def test_an_interrupted_upload_keeps_the_typed_text(
    open_as: Open, demo: ServiceProcess, browser_log: BrowserLog, tmp_path: Path
) -> None:
    model = new_model()
    image = tmp_path / "image.zip"
    image.write_bytes(build_test_package(model, "1.0.0"))
    page = open_as("/firmware")
    asking = upload_dialog(page)
    choose_image(asking, image)
    fill_fields(asking, model, "1.0.0")
    upload = asking.get_by_role("button", name="Upload", exact=True)

    browser_log.expect("net::ERR_FAILED")
    page.route("**/api/v1/firmware", lambda route: route.abort())
    upload.click()
    expect(asking.get_by_role("alert")).to_contain_text("The upload was interrupted")
    page.unroute("**/api/v1/firmware")

    # A connection slow enough to watch and cancel the upload.
    bundle = tmp_path / "bundle.raucb"
    bundle.write_bytes(bytes(8 * 1024 * 1024))
    asking.get_by_label("Image", exact=True).set_input_files(bundle)
    line = page.context.new_cdp_session(page)
    line.send("Network.enable")
    line.send("Network.emulateNetworkConditions", {**_LINE, "uploadThroughput": 200_000})
    upload.click()
    expect(asking.get_by_role("progressbar", name="Upload")).to_be_visible()
    expect(asking).to_contain_text(re.compile(r"MiB of 8[.]0 MiB · \d+ %.*KiB/s"))
    page.keyboard.press("Escape")
    expect(asking).to_contain_text("The upload is in progress.")
    asking.get_by_role("button", name="Cancel upload").click()
    expect(asking).to_contain_text("The upload was canceled.")
    line.send("Network.emulateNetworkConditions", {**_LINE, "uploadThroughput": -1})
    line.detach()
    assert demo.call("GET", f"/api/v1/firmware?ModelNumber={model}")["items"] == []

    # The file has changed since, so the browser refuses to read it.
    asking.get_by_label("Image", exact=True).set_input_files(image)
    expect(asking).to_contain_text(hashlib.sha256(image.read_bytes()).hexdigest())
    image.write_bytes(build_test_package(model, "1.0.1"))
    browser_log.expect("net::ERR_UPLOAD_FILE_CHANGED")
    upload.click()
    expect(asking).to_contain_text("The browser cannot read image.zip.")
    expect(asking.get_by_role("combobox", name="Model")).to_have_value(model)
    asking.get_by_label("Image", exact=True).set_input_files(image)
    try:
        upload.click()
        # The version was not typed, so that of the second package is used.
        expect(page.get_by_role("heading", level=1)).to_have_text(f"Model {model} 1.0.1")
    finally:
        delete_firmware(demo, model)


def test_an_upload_with_a_lost_response_is_not_reported_as_failed(
    open_as: Open, demo: ServiceProcess, browser_log: BrowserLog, tmp_path: Path
) -> None:
    model = new_model()
    page = open_as("/firmware")
    asking = upload_dialog(page)
    line = page.context.new_cdp_session(page)
    answers: list[str] = []
    line.on("Fetch.requestPaused", lambda paused: answers.append(paused["requestId"]))
    line.send("Fetch.enable", {"patterns": [{"urlPattern": "*/api/v1/firmware", "requestStage": "Response"}]})

    def send(version: str) -> None:
        image = tmp_path / f"{version}.zip"
        image.write_bytes(build_test_package(model, version))
        choose_image(asking, image)
        fill_fields(asking, model, version)
        asking.get_by_role("button", name="Upload", exact=True).click()
        expect(asking).to_contain_text("Everything is sent.")
        wait_until(page, lambda: answers)

    try:
        # The service has stored it, but its response is lost.
        send("1.0.0")
        browser_log.expect("net::ERR_CONNECTION_RESET")
        line.send("Fetch.failRequest", {"requestId": answers.pop(), "errorReason": "ConnectionReset"})
        expect(asking.get_by_role("alert")).to_contain_text("Check the list")
        expect(asking).not_to_contain_text("nothing was stored")

        # After a cancel it is unknown too.
        send("1.0.1")
        asking.get_by_role("button", name="Cancel upload").click()
        expect(asking).to_contain_text("Check the list")
        line.send("Fetch.disable")
        line.detach()
        there = demo.call("GET", f"/api/v1/firmware?ModelNumber={model}")["items"]
        assert [each["version"] for each in there] == ["1.0.1", "1.0.0"]
    finally:
        delete_firmware(demo, model)


def test_an_empty_response_does_not_block_the_dialog(
    open_as: Open, browser_log: BrowserLog, tmp_path: Path
) -> None:
    image = tmp_path / "image.zip"
    image.write_bytes(build_test_package("0018", "1.0.0"))
    page = open_as("/firmware")
    asking = upload_dialog(page)
    choose_image(asking, image)
    fill_fields(asking, "0018", "1.0.0")
    browser_log.expect("SyntaxError")
    page.route("**/api/v1/firmware", lambda route: route.fulfill(status=204))
    asking.get_by_role("button", name="Upload", exact=True).click()
    expect(asking.get_by_role("alert")).to_be_visible()
    asking.get_by_role("button", name="Cancel", exact=True).click()
    expect(asking).to_have_count(0)
