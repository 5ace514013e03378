"""docs/mqtt-conformance.md has a row for every statement of the standard, and cites tests that exist."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

TESTS: Final = Path(__file__).parents[2]
PAGE: Final = TESTS.parent / "docs" / "mqtt-conformance.md"

LAST_STATEMENTS: Final = """
    1.5.3-3 2.2.2-2 2.3.1-7
    3.1.0-2 3.1.2-24 3.1.3-11 3.1.4-5 3.2.0-1 3.2.2-6
    3.3.1-12 3.3.2-3 3.3.4-1 3.3.5-2 3.6.1-1
    3.8.1-1 3.8.3-4 3.8.4-6 3.9.3-2 3.10.1-1 3.10.3-2 3.10.4-6
    3.12.4-1 3.14.1-1 3.14.4-3
    4.1.0-2 4.3.1-1 4.3.2-2 4.3.3-2 4.4.0-1 4.5.0-2 4.6.0-6
    4.7.1-3 4.7.2-1 4.7.3-4 4.8.0-2
    6.0.0-4 7.0.0-2 7.1.1-1 7.1.2-1
"""
"""Last statement of every section of MQTT 3.1.1 that has any. They begin at 1 without gaps."""

STATEMENTS: Final = [
    f"MQTT-{section}-{number}"
    for section, _, last in (each.partition("-") for each in LAST_STATEMENTS.split())
    for number in range(1, int(last) + 1)
]

SHORTEST_REASON: Final = 40
"""Characters; a shorter text explains nothing."""

_TABLE = re.compile(r"^\| statement \|.*\n\|[-|]+\n((?:\|.*\n)+)", re.MULTILINE)
_CITED = re.compile(r"`((?:\w+/)+test_\w+\.py)::(test_\w+)`")
_REASON = re.compile(r"(?:deviation|does not arise): (.*)")
_WORDS = re.compile(r"\*([\w ]+)\*")


class Row(NamedTuple):
    """One statement of the page."""

    statement: str
    requirement: str
    party: str
    proof: str

    @property
    def cited(self) -> list[tuple[str, str]]:
        """File and name of each cited test."""
        return _CITED.findall(self.proof)

    @property
    def reason(self) -> str | None:
        """Why the statement is not followed, or not completely; None if it is."""
        found = _REASON.search(self.proof)
        return found and found[1]


ROWS: Final = [
    Row(*[cell.strip() for cell in line.strip("|").split("|")])
    for table in _TABLE.findall(PAGE.read_text())
    for line in table.splitlines()
]


@cache
def _top_level_functions(path: str) -> frozenset[str]:
    """Return the names of the functions of a test module, outside of classes."""
    module = TESTS / path
    if not module.is_file():
        return frozenset()
    return frozenset(
        node.name
        for node in ast.parse(module.read_text()).body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )


def test_every_statement_has_one_row_in_order_and_there_are_no_others() -> None:
    assert len(STATEMENTS) == 141
    assert [row.statement for row in ROWS] == STATEMENTS


def test_every_row_says_what_is_required_of_client_or_server() -> None:
    assert [row.statement for row in ROWS if not row.requirement.endswith(".")] == []
    assert [row.statement for row in ROWS if row.party not in {"client", "server", "both"}] == []


def test_statements_for_clients_only_have_no_tests() -> None:
    assert [row.statement for row in ROWS if (row.proof == "-") != (row.party == "client")] == []


def test_every_cited_test_exists() -> None:
    missing = {
        f"{path}::{name}"
        for row in ROWS
        for path, name in row.cited
        if name not in _top_level_functions(path)
    }
    assert sorted(missing) == []


def test_every_citation_has_the_same_form() -> None:
    assert [row.statement for row in ROWS if row.proof.count("::") != len(row.cited)] == []


def test_every_statement_for_servers_has_a_test_or_a_reason_for_deviating() -> None:
    bare = [row.statement for row in ROWS if row.party != "client" and not row.cited and row.reason is None]
    assert bare == []


def test_every_reason_is_long_enough_to_explain_something() -> None:
    short = [row.statement for row in ROWS if row.reason is not None and len(row.reason) < SHORTEST_REASON]
    assert short == []


def test_every_deviation_is_explained_at_the_top_of_the_page() -> None:
    explained = set(re.findall(r"^\| \*([\w ]+)\* \|", PAGE.read_text(), re.MULTILINE))
    assert {word for row in ROWS for word in _WORDS.findall(row.proof)} == explained


def test_no_row_promises_a_future_test() -> None:
    assert [row.statement for row in ROWS if "to come" in row.proof] == []
