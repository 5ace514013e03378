"""What the service has stored, as its clients read it, compared with the ledgers of gateways."""

from __future__ import annotations

import csv
import io
import json
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import httpx

from meshfleet.protocol.ids import Mac, to_device_id
from meshfleet.rest import LOGIN_PATH
from tests.cli.programs import TEST_TIMEOUT
from tests.eventually import eventually
from tests.scenarios.report_source import ExpectedSample, to_json
from tests.scenarios.service_process import PASSWORD
from tests.servers import NO_TRUSTED_AUTHORITIES

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tests.scenarios.report_source import ReportSource
    from tests.scenarios.service_process import ServiceProcess


def check_stored_samples(service: ServiceProcess, sources: Iterable[ReportSource]) -> None:
    """See that all that was published is there, as it was published, and nothing twice.

    What another broker acknowledged may still be on its way: it is waited for.
    """
    with _client(service) as client:
        for ledger in sources:
            assert ledger.unacknowledged == 0
            for device, entries in ledger.expected.items():
                sheet = _wait_for(client, device, entries)
                _compare(sheet, entries)
                assert _load_pages(client, device) == sheet[::-1]


def count_samples(service: ServiceProcess, device: str) -> int:
    """How many samples of a device are there."""
    with _client(service) as client:
        return len(_load_csv(client, Mac(device)))


def _compare(sheet: list[ExpectedSample], entries: set[ExpectedSample]) -> None:
    strange = sorted(set(sheet) - entries)
    assert entries <= set(sheet), _missing(sheet, entries)
    assert not strange, f"{len(strange)} were never said: {strange[:3]}"
    assert len(sheet) == len(entries), f"{len(sheet) - len(entries)} are there twice"


def _missing(sheet: list[ExpectedSample], entries: set[ExpectedSample]) -> str:
    missing, strange = sorted(entries.difference(sheet)), sorted(set(sheet) - entries)
    return f"{len(missing)} of {len(entries)} are not there: {missing[:3]} but {strange[:3]}"


@contextmanager
def _client(service: ServiceProcess) -> Iterator[httpx.Client]:
    """Somebody who has logged in, once for all that is asked."""
    with httpx.Client(base_url=service.url, verify=NO_TRUSTED_AUTHORITIES, timeout=TEST_TIMEOUT) as client:
        login = client.post(LOGIN_PATH, json={"username": "admin", "password": PASSWORD})
        client.headers["Authorization"] = f"Bearer {login.json()['authToken']}"
        yield client


def _wait_for(client: httpx.Client, device: Mac, entries: set[ExpectedSample]) -> list[ExpectedSample]:
    """All samples of a device, as soon as there are as many as there are entries."""

    def sheet() -> list[ExpectedSample]:
        found = _load_csv(client, device)
        assert len(found) >= len(entries), _missing(found, entries)
        return found

    return eventually(sheet, f"to have all of {device}")


def _load_csv(client: httpx.Client, device: Mac) -> list[ExpectedSample]:
    """The samples of a device, the oldest first; none if it is not known."""
    answer = client.get(f"/api/v1/devices/{to_device_id(device)}/samples", headers={"Accept": "text/csv"})
    if answer.status_code == 404:
        return []
    assert answer.is_success, answer.text
    rows = csv.DictReader(io.StringIO(answer.text, newline=""))
    return [_entry({**row, "value": json.loads(row["value"] or "null")}) for row in rows]


def _load_pages(client: httpx.Client, device: Mac) -> list[ExpectedSample]:
    """The same page by page, the newest first."""
    found: list[ExpectedSample] = []
    asked: dict[str, Any] = {"MaxResults": 300}
    while True:
        page = client.get(f"/api/v1/devices/{to_device_id(device)}/samples", params=asked).json()
        found += [_entry(item) for item in page["items"]]
        if page["nextToken"] is None:
            return found
        asked["NextToken"] = page["nextToken"]


def _entry(item: dict[str, Any]) -> ExpectedSample:
    return ExpectedSample(
        item["time"],
        item["kind"],
        item["identifier"] or item["name"],
        None if item["seq"] in {"", None} else int(item["seq"]),
        to_json(item["value"]),
        item["raw"] or None,
        item["gateway"],
    )
