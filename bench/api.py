"""Latency of pages of the device list over HTTP, and their CPU time compared with an ORM.

The same fleet is on SQLite and on PostgreSQL. The service is its own process, with one client connection.
Every case requests the first page with many different filter values, and the 1000th page (or the last, if
there are fewer) with some of them; paging there is not measured. The anchor is `bench.api_reference` on the
same file.
"""

from __future__ import annotations

import math
import statistics
import time
from contextlib import contextmanager
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import psycopg
from tests.servers import postgresql

from bench.api_cases import build_cases
from bench.api_client import run_reference, run_service
from bench.api_fleet import SIZE, TEAMS, fill_database
from meshfleet.db import open_database

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from bench.api_cases import Case
    from bench.api_client import Client, Server

THRESHOLDS = {
    "SQLite, p99 ms": 15.0,
    "PostgreSQL, p50 ms": 10.0,
    "PostgreSQL, p99 ms": 50.0,
    "CPU of the reference": 0.5,
    "filling 1,000,000, s": 120.0,
}

QUICK_SIZE = 20_000
REQUESTS = 40
"""Requests per case and page."""

SORTED = ", by "
"""Part of the names of cases that are not sorted by id."""

PATH = "/api/v1/devices?"
HEALTH_PATH = "/healthz"
WALK_PAGE_SIZE = 999
"""Devices per page while paging: 100 such pages lead to the 1000th page of 100 devices."""

MAX_WALK_PAGES = 100
MAX_WALKS = 5
"""Maximum number of walks per case; no walk is started after MAX_WALK_PAGES pages."""

PAGES_FROM_END = 10
"""Number of pages at the end of a walk that are requested."""

SERVER = ("shared_buffers=1GB", "max_wal_size=4GB", "checkpoint_timeout=30min")
"""Settings of PostgreSQL on a dedicated machine."""


class Page(msgspec.Struct, rename="camel"):
    """Part of a response that leads to the next page."""

    next_token: str | None


class Series(NamedTuple):
    """Measured requests of one kind."""

    ms: list[float]
    """Milliseconds of each request, as seen by the client."""
    cpu: float
    """CPU time of the service for all requests in milliseconds, more reliable than time on a busy machine."""


def run(*, quick: bool) -> dict[str, Any]:
    """Fill both databases, measure the lists of both services, and compare."""
    size = QUICK_SIZE if quick else SIZE
    cases = list(build_cases(size, Random(2), queries=REQUESTS))  # noqa: S311 # the same values every time
    filled: dict[str, Any] = {}
    with _temporary_data() as data:
        filled["SQLite"] = _fill(data, "sqlite", size)
        with run_service(data, "sqlite") as ours:
            on_sqlite = _measure_lists(ours, cases)
            cpu = _against_reference(ours, data / "meshfleet.sqlite", quick=quick)
    with _temporary_data() as data, postgresql(*SERVER) as (host, port):
        database = f"postgresql://postgres@{host}:{port}/postgres"
        filled["PostgreSQL"] = _fill(data, database, size)
        _vacuum(database)
        with run_service(data, database) as ours:
            on_postgresql = _measure_lists(ours, cases)
    return {
        f"filling {size:,} devices": filled,
        "a page of 100 devices": cpu,
        "lists on SQLite, ms": on_sqlite,
        "lists on PostgreSQL, ms": on_postgresql,
        "bars": THRESHOLDS,
    }


@contextmanager
def _temporary_data() -> Iterator[Path]:
    with TemporaryDirectory(prefix="meshfleet-bench-") as folder:
        yield Path(folder)


def _fill(data: Path, address: str, size: int) -> dict[str, float]:
    started = time.monotonic()
    database = open_database(address, data)
    try:
        fill_database(database, size)
    finally:
        database.close()
    return {"s": round(time.monotonic() - started, 1)}


def _vacuum(database: str) -> None:
    """Vacuum now, so that PostgreSQL does not start it during the measurement."""
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("VACUUM ANALYZE")


def _measure_lists(server: Server, cases: Sequence[Case]) -> dict[str, dict[str, float]]:
    """Return a row for each case, after rows for all cases together and for the worst."""
    found: dict[str, dict[str, Series]] = {}
    floor: list[Series] = []
    for case in cases:
        pages = {"first": [PATH + query for query in case.queries], "1000th": _far_pages(server.client, case)}
        found[case.name] = {page: _measure_requests(server, paths) for page, paths in pages.items() if paths}
        floor.append(_measure_requests(server, [HEALTH_PATH] * REQUESTS))
    by_id = {name: pages for name, pages in found.items() if SORTED not in name}
    otherwise = {name: pages for name, pages in found.items() if SORTED in name}
    worst = max(by_id, key=lambda name: max(_percentile(99, each.ms) for each in found[name].values()))
    return {
        "every filter, alone and in pairs": _row(_join_cases(by_id)),
        f"the worst of these: {worst}": _row(found[worst]),
        "every filter, with another sort": _row(_join_cases(otherwise)),
        f"no list at all: {HEALTH_PATH}": _row({"first": _join_series(floor)}),
        **{name: _row(pages) for name, pages in found.items()},
    }


def _join_cases(found: Mapping[str, Mapping[str, Series]]) -> dict[str, Series]:
    return {
        page: _join_series([pages[page] for pages in found.values() if page in pages])
        for page in ("first", "1000th")
    }


def _far_pages(client: Client, case: Case) -> list[str]:
    """Return the paths of pages around the 1000th, or of the last ones; none if there is only one page."""
    pages: list[str] = []
    steps = 0
    for query in dict.fromkeys(case.queries[:MAX_WALKS]):
        tokens = _walk(client, f"{query}&MaxResults={WALK_PAGE_SIZE}") or _walk(client, query)
        pages += [f"{PATH}{query}&NextToken={token}" for token in tokens[-PAGES_FROM_END:]]
        steps += len(tokens)
        if steps >= MAX_WALK_PAGES:
            break
    return (pages * REQUESTS)[:REQUESTS]


def _walk(client: Client, query: str) -> list[str]:
    tokens: list[str] = []
    while len(tokens) < MAX_WALK_PAGES:
        at = f"&NextToken={tokens[-1]}" if tokens else ""
        token = msgspec.json.decode(client.get(f"{PATH}{query}{at}"), type=Page).next_token
        if token is None:
            break
        tokens.append(token)
    return tokens


def _measure_requests(server: Server, paths: Sequence[str]) -> Series:
    before = server.process.cpu
    ms = [_ms(server.client, path) for path in paths]
    return Series(ms, (server.process.cpu - before) * 1000)


def _join_series(several: Sequence[Series]) -> Series:
    return Series([ms for each in several for ms in each.ms], sum(each.cpu for each in several))


def _ms(client: Client, path: str) -> float:
    start = time.perf_counter()
    client.get(path)
    return (time.perf_counter() - start) * 1000


def _row(pages: Mapping[str, Series]) -> dict[str, float]:
    return {
        f"{page} {name}": round(value, 2)
        for page, (ms, cpu) in pages.items()
        if ms
        for name, value in (
            ("p50", _percentile(50, ms)),
            ("p99", _percentile(99, ms)),
            ("cpu", cpu / len(ms)),
        )
    }


def _percentile(part: int, values: Sequence[float]) -> float:
    return sorted(values)[math.ceil(len(values) * part / 100) - 1]


def _against_reference(ours: Server, file: Path, *, quick: bool) -> dict[str, dict[str, float]]:
    rounds, requests = (3, 100) if quick else (5, 300)
    with run_reference(file) as theirs:
        return {
            name: _cpu(ours, theirs, PATH + query, [requests] * rounds)
            for name, query in (("all", ""), ("Label", f"Label={TEAMS[7].replace(' ', '+')}"))
        }


def _cpu(ours: Server, theirs: Server, path: str, rounds: Sequence[int]) -> dict[str, float]:
    """Measure the CPU time of both servers for the same page, in turns. Return the medians of the rounds."""
    _check_same_devices(ours.client.get(path), theirs.client.get(path))
    samples: dict[str, list[float]] = {"cpu_us": [], "reference cpu_us": []}
    for requests in rounds:
        for values, server in zip(samples.values(), (ours, theirs), strict=True):
            before = server.process.cpu
            for _ in range(requests):
                server.client.get(path)
            values.append((server.process.cpu - before) / requests * 1e6)
    row = {name: round(statistics.median(values)) for name, values in samples.items()}
    return {**row, "of the reference": round(row["cpu_us"] / row["reference cpu_us"], 3)}


def _check_same_devices(ours: bytes, theirs: bytes) -> None:
    """Raise an error if the two servers do not return the same devices."""
    items, others = (msgspec.json.decode(each)["items"] for each in (ours, theirs))
    if items != others:
        different = next((pair for pair in zip(items, others, strict=False) if pair[0] != pair[1]), None)
        raise RuntimeError(f"the reference returns {len(others)} devices, not {len(items)}: {different}")
