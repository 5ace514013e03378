"""Requests of docs/guides/service.md, executed with curl."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

from meshfleet import errors
from meshfleet.client.blocking import Fleet
from meshfleet.testing import running_fleet
from tests.cli.programs import TEST_TIMEOUT
from tests.cli.shell import wait_until_connected
from tests.external_tools import BASH, CURL, require

PAGE = (Path(__file__).parent.parent / "docs" / "guides" / "service.md").read_text()
(REQUESTS,) = re.findall(r"^## Requests\n(.*?)^## ", PAGE, re.MULTILINE | re.DOTALL)


@pytest.mark.rule("rest-25", "rest-97", "rest-99", "rest-102", "rest-103", "rest-193", "rest-194")
def test_every_request_of_the_page_gets_the_documented_response() -> None:
    blocks = re.findall(r"^```sh\n(.*?)^```$", REQUESTS, re.MULTILINE | re.DOTALL)
    script = re.sub(r"^(curl.*)$", r"\1; echo", "".join(blocks), flags=re.MULTILINE)
    with (
        running_fleet(speed=20) as running,
        Fleet(running.url, user=running.user, password=running.password) as fleet,
    ):
        wait_until_connected(fleet, "ca5bda1a0002")
        result = subprocess.run(
            [str(require(BASH)), "-euc", script],
            env={
                "PATH": str(require(CURL).parent),
                "URL": running.url,
                "AUTH": f"Authorization: Bearer {fleet.log_in().token}",
            },
            capture_output=True,
            text=True,
            check=True,
            timeout=TEST_TIMEOUT,
        )
    read, written, version, accepted, once, again, history = map(json.loads, result.stdout.splitlines())
    (documented,) = re.findall(r"^    (\{.*\n.*\})$", REQUESTS, re.MULTILINE)
    assert read.keys() == json.loads(documented).keys()
    assert (read["status"], read["value"], read["gateway"]) == (0, 4, "02005e000001")
    assert read["choice"]["reason"] in {"strongest", "last-heard"}
    assert (written["status"], version["version"], version["choice"]["reason"]) == (0, "2.4.0", "itself")
    assert accepted["state"] == "PENDING"
    assert once == again
    assert [each["id"] for each in history["items"]] == [once["id"], accepted["id"]]


def test_the_table_lists_every_error_without_a_response() -> None:
    rows = re.findall(r"^\| `([a-z-]+)` \| (\d+) \| .* \| (yes|no) \|$", REQUESTS, re.MULTILINE)
    assert {(code, int(status), sent == "yes") for code, status, sent in rows} == {
        (each.code, each.http, each.sent) for each in errors.Unanswered.__subclasses__()
    }
