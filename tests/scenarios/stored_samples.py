"""Comparison of the stored samples, as clients read them, with the reports of gateways."""

from __future__ import annotations

import csv
import io
import json
from typing import TYPE_CHECKING, Any

from meshfleet.protocol.ids import Mac, to_device_id
from tests.cli.programs import open_client
from tests.eventually import eventually
from tests.scenarios.report_source import ExpectedSample, to_json
from tests.scenarios.service_process import PASSWORD

if TYPE_CHECKING:
    from collections.abc import Iterable

    import httpx

    from tests.scenarios.report_source import ReportSource
    from tests.scenarios.service_process import ServiceProcess


def check_stored_samples(service: ServiceProcess, sources: Iterable[ReportSource]) -> None:
    """Check that every published sample is stored unchanged, and only once.

    Reports that another broker acknowledged may still be on their way: they are waited for.
    """
    with open_client(service.url, PASSWORD) as client:
        for source in sources:
            assert source.unacknowledged == 0
            for device, expected in source.expected.items():
                stored = _wait_for_samples(client, device, expected)
                _compare(stored, expected)
                assert _load_pages(client, device) == stored[::-1]


def count_samples(service: ServiceProcess, device: str) -> int:
    """Count the stored samples of a device."""
    return len(load_samples(service, device))


def load_samples(service: ServiceProcess, device: str) -> list[ExpectedSample]:
    """Load the stored samples of a device, the oldest first."""
    with open_client(service.url, PASSWORD) as client:
        return _load_csv(client, Mac(device))


def _compare(stored: list[ExpectedSample], expected: set[ExpectedSample]) -> None:
    unexpected = sorted(set(stored) - expected)
    assert expected <= set(stored), _describe_missing(stored, expected)
    assert not unexpected, f"{len(unexpected)} were never published: {unexpected[:3]}"
    assert len(stored) == len(expected), f"{len(stored) - len(expected)} are stored twice"


def _describe_missing(stored: list[ExpectedSample], expected: set[ExpectedSample]) -> str:
    missing, unexpected = sorted(expected.difference(stored)), sorted(set(stored) - expected)
    return f"{len(missing)} of {len(expected)} are missing: {missing[:3]}; unexpected: {unexpected[:3]}"


def _wait_for_samples(
    client: httpx.Client, device: Mac, expected: set[ExpectedSample]
) -> list[ExpectedSample]:
    """Wait until a device has at least the expected number of samples, and return them."""

    def load() -> list[ExpectedSample]:
        stored = _load_csv(client, device)
        assert len(stored) >= len(expected), _describe_missing(stored, expected)
        return stored

    return eventually(load, f"all samples of {device}")


def _load_csv(client: httpx.Client, device: Mac) -> list[ExpectedSample]:
    """Load the samples of a device as CSV, the oldest first; none if the device is unknown."""
    response = client.get(f"/api/v1/devices/{to_device_id(device)}/samples", headers={"Accept": "text/csv"})
    if response.status_code == 404:
        return []
    assert response.is_success, response.text
    rows = csv.DictReader(io.StringIO(response.text, newline=""))
    return [_parse_sample({**row, "value": json.loads(row["value"] or "null")}) for row in rows]


def _load_pages(client: httpx.Client, device: Mac) -> list[ExpectedSample]:
    """Load the samples of a device page by page, the newest first."""
    samples: list[ExpectedSample] = []
    query: dict[str, Any] = {"MaxResults": 300}
    while True:
        page = client.get(f"/api/v1/devices/{to_device_id(device)}/samples", params=query).json()
        samples += [_parse_sample(item) for item in page["items"]]
        if page["nextToken"] is None:
            return samples
        query["NextToken"] = page["nextToken"]


def _parse_sample(item: dict[str, Any]) -> ExpectedSample:
    return ExpectedSample(
        item["time"],
        item["kind"],
        item["identifier"] or item["name"],
        None if item["seq"] in {"", None} else int(item["seq"]),
        to_json(item["value"]),
        item["raw"] or None,
        item["gateway"],
    )
