"""SQL of the dashboard of a device, on a table and function with the columns of `meshfleet_read.sample`."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from tests.deployment.monitoring_files import list_queries, load_dashboards
from tests.servers import postgresql

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.part("monitoring")

DEVICE, NAME = "ca5bda1a0004", "Cold room's door"

MACROS = {
    r"\$__timeFrom\(\)": "'2026-11-01T06:00:00Z'",
    r"\$__timeTo\(\)": "'2026-11-01T12:00:00Z'",
    r"\$__timeGroupAlias\((\w+), (?:\$__interval|'1h')\)": (
        r'floor(extract(epoch from \1) / 3600) * 3600 AS "time"'
    ),
    r"\$\{device:sqlstring\}": f"'{DEVICE}'",
    r"\$\{identifier:sqlstring\}": "'temperature'",
}
"""Replacements that Grafana makes for its macros and variables."""


@pytest.fixture(scope="module")
def connection() -> Iterator[psycopg.Connection[dict[str, Any]]]:
    """Run a server whose table has samples of one device."""
    with (
        postgresql() as (host, port),
        psycopg.connect(
            f"postgresql://postgres@{host}:{port}/postgres",
            autocommit=True,
            row_factory=psycopg.rows.dict_row,
        ) as connection,
    ):
        connection.execute("CREATE SCHEMA meshfleet_read")
        connection.execute(
            "CREATE TABLE meshfleet_read.sample (time timestamptz, device text, name text, kind text,"
            " identifier text, value double precision, text text)"
        )
        connection.execute(
            "CREATE FUNCTION meshfleet_read.sample(since timestamptz, until timestamptz)"
            " RETURNS SETOF meshfleet_read.sample LANGUAGE sql STABLE AS"
            " $$ SELECT * FROM meshfleet_read.sample WHERE time >= since AND time < until $$"
        )
        insert = (
            "INSERT INTO meshfleet_read.sample"
            " VALUES ('2026-11-01T12:00:00Z'::timestamptz - make_interval(mins => %s),"
            " %s, %s, %s, %s, %s, %s)"
        )
        for row in (
            (1, DEVICE, NAME, "measurement", "temperature", 4.5, None),
            (2, DEVICE, NAME, "measurement", "temperature", 5.5, None),
            (3, DEVICE, NAME, "event", "button", None, "pressed"),
            (4, "ca5bda1a0005", "Other", "measurement", "temperature", 40.0, None),
            (5000, DEVICE, NAME, "measurement", "temperature", 99.0, None),
        ):
            connection.execute(insert, row)
        yield connection


def _run(connection: psycopg.Connection[dict[str, Any]], query: str) -> list[dict[str, Any]]:
    for macro, text in MACROS.items():
        query = re.sub(macro, text, query)
    assert "$" not in query
    return connection.execute(query).fetchall()


def test_every_panel_shows_samples_of_the_device(connection: psycopg.Connection[dict[str, Any]]) -> None:
    rows = {query.panel: _run(connection, query.text) for query in list_queries("device")}
    assert [(row["identifier"], row["value"], row["text"]) for row in rows["Newest values"]] == [
        ("button", None, "pressed"),
        ("temperature", 4.5, None),
    ]
    assert [row["text"] for row in rows["Events and texts"]] == ["pressed"]
    averages = rows["$identifier"]
    assert {row["metric"] for row in averages} == {"temperature"}
    assert all(4.5 <= row["value"] <= 5.5 for row in averages)
    counts = rows["Samples"]
    assert sum(row["value"] for row in counts) == 3
    assert list(averages[0]) == list(counts[0]) == ["time", "metric", "value"]


def test_the_variables_list_devices_and_identifiers(connection: psycopg.Connection[dict[str, Any]]) -> None:
    variables = load_dashboards()["device"]["templating"]["list"]
    (devices, identifiers) = [each["query"] for each in variables if each["type"] == "query"]
    assert _run(connection, devices.replace("now()", "'2026-11-01T12:00:00Z'::timestamptz")) == [
        {"__text": NAME, "__value": DEVICE},
        {"__text": "Other", "__value": "ca5bda1a0005"},
    ]
    assert _run(connection, identifiers) == [{"identifier": "temperature"}]
