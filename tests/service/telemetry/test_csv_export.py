"""CSV export of samples: all of them in one stream, readable by any program and spreadsheet."""

from __future__ import annotations

import asyncio
import csv
import io
import json
import threading
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from meshfleet.db.samples.sample import ClockFlag, SampleConsumer, SampleExtras, SampleKind, SampleQuery
from meshfleet.errors import DatabaseUnavailable
from meshfleet.protocol.times import format_millis
from tests.eventually import eventually
from tests.row_tables import each_row
from tests.service.http.raw_http import build_bearer_header, build_head, connect_raw
from tests.service.telemetry.sample_data import (
    AT,
    build_sample,
    get_all_pages,
    learn_name,
    list_faults,
    store_samples,
)

if TYPE_CHECKING:
    from tests.service.http.running_service import RunningService

_PATIENCE = 60.0
"""Seconds until the server must have reacted; reached only by a defect."""

HEADER = "time,kind,identifier,name,seq,value,raw,ext,error,errorExt,gateway,clock"
CSV = {"Accept": "text/csv"}
MANY = 20_000


def samples_path(device: str) -> str:
    return f"/api/v1/devices/{device}/samples"


def get_rows(service: RunningService, device: str, **query: Any) -> list[dict[str, str]]:
    """Return the rows of a CSV file, parsed strictly by RFC 4180."""
    response = service.viewer.get(samples_path(device), params=query, headers=CSV)
    assert response.status_code == 200, response.text
    text = response.content.decode()
    assert text.endswith("\r\n")
    rows = list(csv.reader(io.StringIO(text, newline=""), strict=True))
    assert ",".join(rows[0]) == HEADER
    return [dict(zip(rows[0], row, strict=True)) for row in rows[1:]]


@pytest.fixture(scope="module")
def large_device(service: RunningService) -> str:
    """Create a device with very many samples, over some days."""
    device = service.new_device()
    store_samples(
        service, device, *(build_sample(AT + 20_000 * number, number / 4) for number in range(MANY))
    )
    return device


@pytest.mark.rule("rest-84")
def test_a_csv_file_is_utf_8_with_a_header_line_and_a_file_name(
    service: RunningService,
) -> None:
    device = service.new_device()
    response = service.viewer.get(samples_path(device), headers=CSV)
    assert response.headers["Content-Type"] == "text/csv; header=present; charset=utf-8"
    mac = device.removeprefix("bmac-")
    assert response.headers["Content-Disposition"] == f'attachment; filename="samples-{mac}.csv"'
    assert response.headers["X-Content-Type-Options"] == "nosniff"
    assert response.content == f"{HEADER}\r\n".encode()


@pytest.mark.rule("rest-84", "rest-187")
def test_a_csv_file_has_all_samples_the_oldest_first(service: RunningService, large_device: str) -> None:
    rows = get_rows(service, large_device)
    assert [row["time"] for row in rows] == [format_millis(AT + 20_000 * number) for number in range(MANY)]
    assert [float(row["value"]) for row in rows] == [number / 4 for number in range(MANY)]


@pytest.fixture(scope="module")
def small_device(chunked_service: RunningService) -> str:
    """Create a device with some samples, in many chunks."""
    device = chunked_service.new_device()
    store_samples(
        chunked_service, device, *(build_sample(AT + 20_000 * number, number / 4) for number in range(200))
    )
    return device


@pytest.mark.rule("rest-84")
@each_row("count", [1, 4, 5, 6, 10, 11, 100])
def test_the_chunks_do_not_change_the_result(
    chunked_service: RunningService, small_device: str, count: int
) -> None:
    end = AT + 20_000 * (count + 1)
    rows = get_rows(chunked_service, small_device, From=format_millis(AT + 1), To=format_millis(end))
    assert [float(row["value"]) for row in rows] == [number / 4 for number in range(1, count + 1)]


@pytest.mark.rule("rest-84")
def test_csv_rows_and_json_items_are_equal(service: RunningService) -> None:
    device, name = service.new_device(), service.new_name('soil, "moisture" é')
    number = learn_name(service, name)
    store_samples(
        service,
        device,
        build_sample(AT, 21, seq=3, raw=b"\x08\x66", more=SampleExtras(ext='{"a":\n"1,2"}')),
        build_sample(
            AT + 1, None, identifier=number, more=SampleExtras(text='"a \\"word\\",\\r\\nand = more é"')
        ),
        build_sample(
            AT + 2, None, kind=SampleKind.MEASUREMENT_ERROR, more=SampleExtras(error=9, error_ext=1)
        ),
        build_sample(AT + 3, 1, kind=SampleKind.EVENT, more=SampleExtras(text="true", clock=ClockFlag.PAST)),
        build_sample(
            AT + 4,
            None,
            kind=SampleKind.PROPERTY,
            identifier=5,
            more=SampleExtras(text='["=1+1", {"x": null}]'),
        ),
    )

    def to_cells(row: dict[str, Any]) -> dict[str, str]:
        return {
            field: "" if value is None else str(value)
            for field, value in row.items()
            if field not in {"value", "ext"}
        }

    items, rows = get_all_pages(service, samples_path(device))[::-1], get_rows(service, device)
    assert len(rows) == 5
    for item, cells in zip(items, rows, strict=True):
        for field in ("value", "ext"):
            cell = cells.pop(field)
            assert (json.loads(cell) if cell else None) == item[field]
        assert cells == to_cells(item)


@pytest.mark.rule("rest-84")
def test_a_csv_file_has_the_same_filters(service: RunningService) -> None:
    device = service.new_device()
    store_samples(
        service, device, *(build_sample(AT + index, index, kind=SampleKind(index % 4)) for index in range(40))
    )
    store_samples(
        service, device, *(build_sample(AT + index, -index, identifier=0x8802) for index in range(40))
    )
    query = {"Kind": ["event", "property"], "Identifier": "temperature"}
    rows = get_rows(service, device, **query, From=format_millis(AT + 3), To=format_millis(AT + 12))
    assert [row["value"] for row in rows] == ["3", "4", "7", "8", "11"]


@pytest.mark.rule("rest-181")
@each_row("name", ["=1+1", "-1", "@SUM(1)", " =1", "=cmd|' /C calc'!A0", "\uff1d1", "\uff201"])
def test_no_name_is_a_formula(service: RunningService, name: str) -> None:
    device, unique = service.new_device(), service.new_name(name)
    number = learn_name(service, unique.replace("/", "|"))
    store_samples(service, device, build_sample(identifier=number, number=1))
    (row,) = get_rows(service, device)
    assert row["name"] == "'" + unique.replace("/", "|")


@pytest.mark.rule("rest-181")
@each_row("text", ["=1+1", "@x", "+1", "-1", "\t=1", "\r=1", '"=1'])
def test_no_value_is_a_formula(service: RunningService, text: str) -> None:
    device = service.new_device()
    store_samples(service, device, build_sample(more=SampleExtras(text=json.dumps(text))))
    (row,) = get_rows(service, device)
    assert row["value"].startswith('"')
    assert json.loads(row["value"]) == text


@pytest.mark.rule("rest-84", "rest-188")
@each_row(
    ("query", "fields"),
    [
        ({"MaxResults": "5"}, ["MaxResults"]),
        ({"NextToken": "x"}, ["NextToken"]),
        ({"maxresults": "5", "nexttoken": ""}, ["MaxResults", "NextToken"]),
        ({"Kind": "x"}, ["Kind"]),
        ({"From": "x"}, ["From"]),
        ({"From": "2024-01-01T00Z", "To": "2023-01-01T00Z"}, ["From"]),
    ],
)
def test_a_csv_file_has_no_pages_and_the_same_errors_as_a_list(
    service: RunningService, query: dict[str, Any], fields: list[str]
) -> None:
    assert (
        list_faults(service.viewer.get(samples_path(service.new_device()), params=query, headers=CSV))
        == fields
    )


@pytest.mark.rule("rest-185")
@each_row(
    ("accept", "media"),
    [
        ("text/csv", "csv"),
        ("TEXT/CSV; charset=utf-8", "csv"),
        ("text/csv;q=0.5, text/plain", "csv"),
        ("text/html, text/csv ; Q=0.2 , */*;q=0.1", "csv"),
        ("text/csv, application/json;q=0.9", "csv"),
        ("text/csv, application/json", "json"),
        ("text/csv;q=0.5, application/json;q=0.6", "json"),
        ("text/csv;q=0", "json"),
        ("text/csv;q=0.000", "json"),
        ("application/json", "json"),
        ("*/*", "json"),
        ("text/*", "json"),
        ("text/html", "json"),
        ("", "json"),
        (",;,q=1;=", "json"),
        ("text/csvx", "json"),
        ("text/csv;q=nan", "csv"),
    ],
)
def test_only_an_accept_header_that_prefers_csv_returns_csv(
    service: RunningService, accept: str, media: str
) -> None:
    response = service.viewer.get(samples_path(service.new_device()), headers={"Accept": accept})
    assert response.status_code == 200
    assert response.headers["Content-Type"].partition(";")[0].rpartition("/")[2] == media


@pytest.mark.rule("rest-185")
def test_without_an_accept_header_json_is_returned(service: RunningService) -> None:
    with connect_raw(service) as connection:
        connection.send(build_head(f"GET {samples_path(service.new_device())}", build_bearer_header(service)))
        response = connection.read()
    assert response is not None
    assert response.json() == {"items": [], "nextToken": None}


class FailingReads:
    """Replaces the reads of the store; the third read fails."""

    def __init__(self, service: RunningService, monkeypatch: pytest.MonkeyPatch) -> None:
        self._read = service.samples.read
        self._reads = 0
        monkeypatch.setattr(service.samples, "read", self.read)
        self.is_waiting, self.is_stopped = threading.Event(), threading.Event()

    async def read(self, query: SampleQuery, consume: SampleConsumer[Any]) -> Any:
        self._reads += 1
        return await (self._read(query, consume) if self._reads < 3 else self.fail())

    async def fail(self) -> None:
        raise DatabaseUnavailable("connection lost")


class EndlessReads(FailingReads):
    """Replaces the reads of the store; the third read never ends."""

    async def fail(self) -> None:
        self.is_waiting.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.is_stopped.set()


@pytest.mark.rule("rest-84")
def test_a_disconnect_of_the_client_stops_its_csv_export(
    chunked_service: RunningService,
    small_device: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    reads = EndlessReads(chunked_service, monkeypatch)
    with chunked_service.viewer.stream("GET", samples_path(small_device), headers=CSV) as response:
        chunks = response.iter_bytes()
        assert next(chunks).startswith(HEADER.encode())
        assert reads.is_waiting.wait(_PATIENCE)
        assert not reads.is_stopped.is_set()
    assert reads.is_stopped.wait(_PATIENCE)
    assert chunked_service.viewer.get("/api/v1/auth/me").status_code == 200
    assert caplog.records == []


@pytest.mark.rule("rest-84")
def test_an_incomplete_csv_export_does_not_look_complete(
    chunked_service: RunningService, small_device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    FailingReads(chunked_service, monkeypatch)
    with pytest.raises(httpx.RemoteProtocolError):
        chunked_service.viewer.get(samples_path(small_device), headers=CSV)


@pytest.mark.rule("rest-84")
def test_a_csv_export_that_cannot_start_returns_a_problem(
    chunked_service: RunningService, small_device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads = FailingReads(chunked_service, monkeypatch)
    monkeypatch.setattr(chunked_service.samples, "read", lambda *_: reads.fail())
    response = chunked_service.viewer.get(samples_path(small_device), headers=CSV)
    assert (response.status_code, response.json()["code"]) == (503, "database-unavailable")


class DelayedReads(FailingReads):
    """Replaces the reads of the store; the first read waits until the client has disconnected."""

    def __init__(self, service: RunningService, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(service, monkeypatch)
        self.is_disconnected = threading.Event()

    async def read(self, query: SampleQuery, consume: SampleConsumer[Any]) -> Any:
        self.is_waiting.set()
        await asyncio.to_thread(self.is_disconnected.wait, _PATIENCE)
        return await super().read(query, consume)


def count_responses(service: RunningService) -> int:
    """Count the completed requests for samples."""
    lines = service.viewer.get("/metrics").text.splitlines()
    counts = [line for line in lines if "request_seconds_count" in line and "{device_id}/samples" in line]
    return sum(round(float(line.rpartition(" ")[2])) for line in counts)


@pytest.mark.rule("rest-84")
def test_a_disconnect_before_a_csv_export_starts_is_not_logged(
    chunked_service: RunningService,
    small_device: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    reads, before = DelayedReads(chunked_service, monkeypatch), count_responses(chunked_service)
    with connect_raw(chunked_service) as connection:
        connection.send(
            build_head(
                f"GET {samples_path(small_device)}", build_bearer_header(chunked_service), "Accept: text/csv"
            )
        )
        assert reads.is_waiting.wait(_PATIENCE)
        connection.hang_up()
    reads.is_disconnected.set()
    eventually(lambda: count_responses(chunked_service) > before, "the end of the request")
    assert caplog.records == []


@pytest.mark.rule("rest-84")
def test_unread_csv_exports_do_not_block_threads(chunked_service: RunningService) -> None:
    """Start more exports than there are reader threads, each larger than the buffers of a connection."""
    device, text = chunked_service.new_device(), json.dumps("x" * 100_000)
    store_samples(
        chunked_service,
        device,
        *(build_sample(AT + index, more=SampleExtras(text=text)) for index in range(100)),
    )
    with ExitStack() as stack:
        for _ in range(12):
            stream = chunked_service.viewer.stream("GET", samples_path(device), headers=CSV)
            assert stack.enter_context(stream).status_code == 200
        assert (
            len(
                get_all_pages(
                    chunked_service, samples_path(device), MaxResults=10, From=format_millis(AT + 75)
                )
            )
            == 25
        )
