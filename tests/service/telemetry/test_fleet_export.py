"""Export of the samples of all devices in one stream."""

from __future__ import annotations

import csv
import io
import json
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from meshfleet.db.samples.sample import SampleKind
from meshfleet.protocol.times import format_millis
from tests.row_tables import each_row
from tests.service.telemetry.sample_data import AT, MINUTE, build_sample, get_json, store_samples
from tests.service.telemetry.test_csv_export import FailingReads

if TYPE_CHECKING:
    from tests.service.http.running_service import RunningService

EXPORT = "/api/v1/samples/export"


def export_lines(service: RunningService, **query: Any) -> list[dict[str, Any]]:
    """Return the lines of an export, with the last one that marks its end."""
    response = service.admin.get(EXPORT, params=query)
    assert response.status_code == 200, response.text
    assert response.headers["Content-Type"] == "application/x-ndjson"
    return [json.loads(line) for line in response.text.splitlines()]


def list_samples(service: RunningService, device: str, **query: Any) -> list[dict[str, Any]]:
    """Return the samples of a device as REST lists them, the oldest first."""
    items = get_json(service, f"/api/v1/devices/{device}/samples", MaxResults=1000, **query)["items"]
    return list(reversed(items))


def new_site(service: RunningService) -> tuple[str, list[str]]:
    """Create devices with samples. Return their label, and the devices."""
    devices, label = [service.new_device() for _ in range(3)], service.new_name("site")
    for number, device in enumerate(devices):
        service.operator.put(f"/api/v1/devices/{device}/labels/{label}").raise_for_status()
        samples = [build_sample(AT + step * MINUTE, step + number / 10, seq=step) for step in range(12)]
        store_samples(service, device, *samples, build_sample(AT, 1, kind=SampleKind.EVENT, raw=b"\1"))
    return label, devices


@pytest.mark.rule("rest-234")
def test_an_export_has_the_samples_of_all_matching_devices_as_rest_lists_them(
    chunked_service: RunningService,
) -> None:
    label, devices = new_site(chunked_service)
    without_samples = chunked_service.new_device()
    chunked_service.operator.put(f"/api/v1/devices/{without_samples}/labels/{label}").raise_for_status()
    span = {"From": format_millis(AT + MINUTE), "To": format_millis(AT + 9 * MINUTE)}
    for query in ({}, span, {"Kind": "event"}, {"Identifier": "temperature", **span}):
        *lines, _ = export_lines(chunked_service, Label=label, **query)
        expected = [
            {**sample, "device": device.removeprefix("bmac-")}
            for device in devices
            for sample in list_samples(chunked_service, device, **query)
        ]
        assert [{**line, "deviceName": None} for line in lines] == [
            {**sample, "deviceName": None} for sample in expected
        ]


@pytest.mark.rule("rest-235")
def test_the_last_line_says_how_many_samples_there_are(chunked_service: RunningService) -> None:
    label, _ = new_site(chunked_service)
    *lines, end = export_lines(chunked_service, Label=label)
    assert end == {"end": True, "samples": len(lines)}
    assert export_lines(chunked_service, Label="no-such-label") == [{"end": True, "samples": 0}]


@pytest.mark.rule("rest-235")
@each_row("file_format", ["jsonl", "csv"])
def test_an_export_that_fails_is_no_complete_response(
    chunked_service: RunningService, monkeypatch: pytest.MonkeyPatch, file_format: str
) -> None:
    label, _ = new_site(chunked_service)
    query = {"Label": label, "Format": file_format}
    with monkeypatch.context() as patch:
        FailingReads(chunked_service, patch)
        with pytest.raises(httpx.RemoteProtocolError):
            chunked_service.admin.get(EXPORT, params=query)
    assert chunked_service.admin.get(EXPORT, params=query).is_success


@pytest.mark.rule("rest-234")
def test_an_export_can_be_csv(chunked_service: RunningService) -> None:
    label, _ = new_site(chunked_service)
    by_format = chunked_service.admin.get(EXPORT, params={"Label": label, "Format": "csv"})
    by_accept = chunked_service.admin.get(EXPORT, params={"Label": label}, headers={"Accept": "text/csv"})
    assert by_format.content == by_accept.content
    rows = list(csv.DictReader(io.StringIO(by_format.text, newline=""), strict=True))
    *lines, _ = export_lines(chunked_service, Label=label)
    for column in ("device", "deviceName", "time", "kind", "identifier", "name", "gateway"):
        assert [row[column] for row in rows] == [line[column] for line in lines]
    assert [json.loads(row["value"]) for row in rows] == [line["value"] for line in lines]


@pytest.mark.rule("rest-234")
def test_only_admins_may_export_and_a_wrong_parameter_is_refused(service: RunningService) -> None:
    assert service.operator.get(EXPORT).status_code == 403
    for query in ({"Format": "xml"}, {"From": "yesterday"}, {"Gateway": "x"}, {"MaxResults": "5"}):
        response = service.admin.get(EXPORT, params=query)
        assert (response.status_code, response.json()["code"]) == (400, "invalid-request"), query
