"""SQL of the dashboard of a device, on a table with the columns of the view `meshfleet_read.sample`."""

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
    r"\$__timeFilter\((\w+)\)": r"\1 BETWEEN now() - interval '6 hours' AND now()",
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
        insert = (
            "INSERT INTO meshfleet_read.sample"
            " VALUES (now() - make_interval(mins => %s), %s, %s, %s, %s, %s, %s)"
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
    found = {each["name"]: _run(connection, each["query"]) for each in variables if each["type"] == "query"}
    assert found == {
        "device": [
            {"__text": NAME, "__value": DEVICE},
            {"__text": "Other", "__value": "ca5bda1a0005"},
        ],
        "identifier": [{"identifier": "temperature"}],
    }
