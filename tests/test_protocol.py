"""docs/protocol.md and the code keep each other honest."""

from __future__ import annotations

import ast
import re
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "protocol.md"

PROVED = {"broker", "client", "console", "gateway", "wire"}
"""The rooms that stand: each of their rules is proved by a test."""

PROVED_OF_SERVICE = {"ack", "auth", "broker", "firmware", "report", "request", "rest"}
"""Of the service, these groups stand, but for the following."""

NOT_YET = {
    "report-44",  # position
    *(f"rest-{number}" for number in range(89, 95)),  # topology, position, retention
    *("rest-173", "rest-174", "rest-175"),  # a service of several processes
}
"""Rules of these that nothing keeps today. This list only gets shorter."""

GROUPS = [
    "id",
    "topic",
    "report",
    "request",
    "response",
    "ack",
    "version",
    "value",
    "firmware",
    "gateway",
    "broker",
    "rest",
    "auth",
]
_RULE = re.compile(rf"^\| ((?:{'|'.join(GROUPS)})-\d+) \| .* \| (\w+) \|$", re.MULTILINE)
_CITED = re.compile(rf"\b(?:{'|'.join(GROUPS)})-\d+\b")


def _rules() -> dict[str, str]:
    """The rules, and the room that keeps each."""
    return dict(_RULE.findall(PAGE.read_text()))


def _marks() -> Iterator[str]:
    """The rules that tests are marked with."""
    for module in (ROOT / "tests").rglob("test_*.py"):
        for node in ast.walk(ast.parse(module.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.mark.rule":
                yield from (ast.literal_eval(argument) for argument in node.args)


def test_every_rule_has_a_number_of_its_own() -> None:
    counted = Counter(rule for rule, _ in _RULE.findall(PAGE.read_text()))
    assert [rule for rule, count in counted.items() if count > 1] == []
    for group in GROUPS:
        numbers = sorted(int(rule.rsplit("-")[-1]) for rule in counted if rule.startswith(f"{group}-"))
        assert numbers == list(range(1, len(numbers) + 1)), group


def test_the_rules_of_a_table_stand_in_order() -> None:
    for table in re.findall(r"(?:^\|.*\n)+", PAGE.read_text(), re.MULTILINE):
        numbers = [int(rule.rsplit("-")[-1]) for rule, _ in _RULE.findall(table)]
        assert numbers == sorted(numbers)


def test_every_rule_of_a_standing_room_is_proved_by_a_test() -> None:
    wanted = {rule for rule, room in _rules().items() if room in PROVED and rule not in NOT_YET}
    wanted |= {
        rule
        for rule, room in _rules().items()
        if room == "service" and rule.partition("-")[0] in PROVED_OF_SERVICE and rule not in NOT_YET
    }
    assert sorted(wanted - set(_marks())) == []


def test_every_rule_that_is_cited_exists() -> None:
    cited = {
        rule
        for folder in ("src", "tests", "docs")
        for path in (ROOT / folder).rglob("*")
        if path.suffix in {".py", ".md", ".table"} and "node_modules" not in path.parts
        for rule in _CITED.findall(path.read_text())
    }
    assert sorted(cited - set(_rules())) == []
