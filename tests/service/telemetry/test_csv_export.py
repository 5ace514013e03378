"""Samples as CSV: all of them in one stream, which any program and any spreadsheet can read."""

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

from meshfleet.db.samples.sample import ClockFlag, SampleExtras, SampleKind
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
    from meshfleet.db.samples.sample import SampleConsumer, SampleQuery
    from tests.service.http.running_service import RunningService

_PATIENCE = 60.0
"""Seconds until a server must have noticed; reached only when it is broken."""

HEADER = "time,kind,identifier,name,seq,value,raw,ext,error,errorExt,gateway,clock"
CSV = {"Accept": "text/csv"}
MANY = 20_000


def path(device: str) -> str:
    return f"/api/v1/devices/{device}/samples"


def sheet(service: RunningService, device: str, **query: Any) -> list[dict[str, str]]:
    """The rows of a sheet, as a program reads it that takes nothing but RFC 4180."""
    answer = service.viewer.get(path(device), params=query, headers=CSV)
    assert answer.status_code == 200, answer.text
    text = answer.content.decode()
    assert text.endswith("\r\n")
    rows = list(csv.reader(io.StringIO(text, newline=""), strict=True))
    assert ",".join(rows[0]) == HEADER
    return [dict(zip(rows[0], row, strict=True)) for row in rows[1:]]


@pytest.fixture(scope="module")
def busy(service: RunningService) -> str:
    """A device with very many samples, over some days."""
    device = service.new_device()
    store_samples(
        service, device, *(build_sample(AT + 20_000 * number, number / 4) for number in range(MANY))
    )
    return device


@pytest.mark.rule("rest-84")
def test_a_sheet_is_utf_8_with_the_fields_in_its_first_line_and_a_name_for_its_file(
    service: RunningService,
) -> None:
    device = service.new_device()
    answer = service.viewer.get(path(device), headers=CSV)
    assert answer.headers["Content-Type"] == "text/csv; header=present; charset=utf-8"
    mac = device.removeprefix("bmac-")
    assert answer.headers["Content-Disposition"] == f'attachment; filename="samples-{mac}.csv"'
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert answer.content == f"{HEADER}\r\n".encode()


@pytest.mark.rule("rest-84", "rest-187")
def test_a_sheet_has_all_samples_the_oldest_first(service: RunningService, busy: str) -> None:
    rows = sheet(service, busy)
    assert [row["time"] for row in rows] == [format_millis(AT + 20_000 * number) for number in range(MANY)]
    assert [float(row["value"]) for row in rows] == [number / 4 for number in range(MANY)]


@pytest.fixture(scope="module")
def few(in_blocks: RunningService) -> str:
    """A device with some samples, in many blocks."""
    device = in_blocks.new_device()
    store_samples(
        in_blocks, device, *(build_sample(AT + 20_000 * number, number / 4) for number in range(200))
    )
    return device


@pytest.mark.rule("rest-84")
@each_row("count", [1, 4, 5, 6, 10, 11, 100])
def test_it_does_not_matter_in_which_blocks_it_is_read(
    in_blocks: RunningService, few: str, count: int
) -> None:
    end = AT + 20_000 * (count + 1)
    rows = sheet(in_blocks, few, From=format_millis(AT + 1), To=format_millis(end))
    assert [float(row["value"]) for row in rows] == [number / 4 for number in range(1, count + 1)]


@pytest.mark.rule("rest-84")
def test_a_sheet_and_the_pages_say_the_same(service: RunningService) -> None:
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

    def as_cells(row: dict[str, Any]) -> dict[str, str]:
        return {
            field: "" if value is None else str(value)
            for field, value in row.items()
            if field not in {"value", "ext"}
        }

    listed, rows = get_all_pages(service, path(device))[::-1], sheet(service, device)
    assert len(rows) == 5
    for row, cells in zip(listed, rows, strict=True):
        for field in ("value", "ext"):
            cell = cells.pop(field)
            assert (json.loads(cell) if cell else None) == row[field]
        assert cells == as_cells(row)


@pytest.mark.rule("rest-84")
def test_a_sheet_has_the_same_filters(service: RunningService) -> None:
    device = service.new_device()
    store_samples(
        service, device, *(build_sample(AT + each, each, kind=SampleKind(each % 4)) for each in range(40))
    )
    store_samples(service, device, *(build_sample(AT + each, -each, identifier=0x8802) for each in range(40)))
    query = {"Kind": ["event", "property"], "Identifier": "temperature"}
    rows = sheet(service, device, **query, From=format_millis(AT + 3), To=format_millis(AT + 12))
    assert [row["value"] for row in rows] == ["3", "4", "7", "8", "11"]


@pytest.mark.rule("rest-181")
@each_row("name", ["=1+1", "-1", "@SUM(1)", " =1", "=cmd|' /C calc'!A0", "\uff1d1", "\uff201"])
def test_no_name_is_a_formula(service: RunningService, name: str) -> None:
    device, unique = service.new_device(), service.new_name(name)
    number = learn_name(service, unique.replace("/", "|"))
    store_samples(service, device, build_sample(identifier=number, number=1))
    (row,) = sheet(service, device)
    assert row["name"] == "'" + unique.replace("/", "|")


@pytest.mark.rule("rest-181")
@each_row("text", ["=1+1", "@x", "+1", "-1", "\t=1", "\r=1", '"=1'])
def test_no_value_is_a_formula(service: RunningService, text: str) -> None:
    device = service.new_device()
    store_samples(service, device, build_sample(more=SampleExtras(text=json.dumps(text))))
    (row,) = sheet(service, device)
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
def test_a_sheet_has_no_pages_and_refuses_what_a_list_refuses(
    service: RunningService, query: dict[str, Any], fields: list[str]
) -> None:
    assert list_faults(service.viewer.get(path(service.new_device()), params=query, headers=CSV)) == fields


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
def test_who_names_csv_gets_csv_and_everybody_else_json(
    service: RunningService, accept: str, media: str
) -> None:
    answer = service.viewer.get(path(service.new_device()), headers={"Accept": accept})
    assert answer.status_code == 200
    assert answer.headers["Content-Type"].partition(";")[0].rpartition("/")[2] == media


@pytest.mark.rule("rest-185")
def test_who_names_nothing_gets_json(service: RunningService) -> None:
    with connect_raw(service) as connection:
        connection.send(build_head(f"GET {path(service.new_device())}", build_bearer_header(service)))
        answer = connection.read()
    assert answer is not None
    assert answer.json() == {"items": [], "nextToken": None}


class Interrupted:
    """Reads as the store does, until something happens at the third block."""

    def __init__(self, service: RunningService, monkeypatch: pytest.MonkeyPatch) -> None:
        self._read = service.samples.read
        self._reads = 0
        monkeypatch.setattr(service.samples, "read", self.read)
        self.waits, self.stopped = threading.Event(), threading.Event()

    async def read(self, query: SampleQuery, consume: SampleConsumer[Any]) -> Any:
        self._reads += 1
        return await (self._read(query, consume) if self._reads < 3 else self.happen())

    async def happen(self) -> None:
        raise DatabaseUnavailable("it went away")


class Endless(Interrupted):
    """It takes for ever."""

    async def happen(self) -> None:
        self.waits.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.stopped.set()


@pytest.mark.rule("rest-84")
def test_a_client_that_goes_away_ends_its_sheet(
    in_blocks: RunningService, few: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    reading = Endless(in_blocks, monkeypatch)
    with in_blocks.viewer.stream("GET", path(few), headers=CSV) as answer:
        chunks = answer.iter_bytes()
        assert next(chunks).startswith(HEADER.encode())
        assert reading.waits.wait(_PATIENCE)
        assert not reading.stopped.is_set()
    assert reading.stopped.wait(_PATIENCE)
    assert in_blocks.viewer.get("/api/v1/auth/me").status_code == 200
    assert caplog.records == []


@pytest.mark.rule("rest-84")
def test_a_sheet_that_cannot_be_finished_does_not_look_finished(
    in_blocks: RunningService, few: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    Interrupted(in_blocks, monkeypatch)
    with pytest.raises(httpx.RemoteProtocolError):
        in_blocks.viewer.get(path(few), headers=CSV)


@pytest.mark.rule("rest-84")
def test_a_sheet_that_cannot_be_begun_is_a_problem(
    in_blocks: RunningService, few: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    reading = Interrupted(in_blocks, monkeypatch)
    monkeypatch.setattr(in_blocks.samples, "read", lambda *_: reading.happen())
    answer = in_blocks.viewer.get(path(few), headers=CSV)
    assert (answer.status_code, answer.json()["code"]) == (503, "database-unavailable")


class Awaiting(Interrupted):
    """The first block comes only when the client has gone."""

    def __init__(self, service: RunningService, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(service, monkeypatch)
        self.gone = threading.Event()

    async def read(self, query: SampleQuery, consume: SampleConsumer[Any]) -> Any:
        self.waits.set()
        await asyncio.to_thread(self.gone.wait, _PATIENCE)
        return await super().read(query, consume)


def answered(service: RunningService) -> int:
    """How many requests for samples have come to their end."""
    lines = service.viewer.get("/metrics").text.splitlines()
    counts = [line for line in lines if "request_seconds_count" in line and "{device_id}/samples" in line]
    return sum(round(float(line.rpartition(" ")[2])) for line in counts)


@pytest.mark.rule("rest-84")
def test_the_log_tells_nothing_of_a_client_that_leaves_before_its_sheet_begins(
    in_blocks: RunningService, few: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    reading, before = Awaiting(in_blocks, monkeypatch), answered(in_blocks)
    with connect_raw(in_blocks) as connection:
        connection.send(build_head(f"GET {path(few)}", build_bearer_header(in_blocks), "Accept: text/csv"))
        assert reading.waits.wait(_PATIENCE)
        connection.hang_up()
    reading.gone.set()
    eventually(lambda: answered(in_blocks) > before, "the end of the request")
    assert caplog.records == []


@pytest.mark.rule("rest-84")
def test_sheets_that_nobody_takes_keep_no_thread_from_others(in_blocks: RunningService) -> None:
    """There are more of them than threads to read with, each longer than what waits in a connection."""
    device, text = in_blocks.new_device(), json.dumps("x" * 100_000)
    store_samples(
        in_blocks, device, *(build_sample(AT + each, more=SampleExtras(text=text)) for each in range(100))
    )
    with ExitStack() as stack:
        for _ in range(12):
            stream = in_blocks.viewer.stream("GET", path(device), headers=CSV)
            assert stack.enter_context(stream).status_code == 200
        assert len(get_all_pages(in_blocks, path(device), MaxResults=10, From=format_millis(AT + 75))) == 25
