"""Consistency of docs/protocol.md with the code and the tests."""

from __future__ import annotations

import ast
import re
from collections import Counter
from pathlib import Path
from textwrap import dedent
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "protocol.md"

TESTED_PARTS = {"broker", "client", "console", "emulator", "protocol"}
"""Parts of which every rule has a test."""

TESTED_SERVICE_GROUPS = {"ack", "auth", "broker", "firmware", "report", "request", "rest"}
"""Groups of rules of the service that have tests, except for the following rules."""

UNTESTED_RULES: set[str] = set()
"""Rules that are not implemented yet, and say so. This list only gets shorter."""

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
    "homeassistant",
    "auth",
]
_RULE = re.compile(rf"^\| ((?:{'|'.join(GROUPS)})-\d+) \| .* \| (\w+) \|$", re.MULTILINE)
_CITED = re.compile(rf"\b(?:{'|'.join(GROUPS)})-\d+\b")


def _load_rules() -> dict[str, str]:
    """Return the rules, and the part that implements each."""
    return dict(_RULE.findall(PAGE.read_text()))


def _find_rule_marks() -> Iterator[str]:
    """Yield the rules in the marks of tests that `make test` runs."""
    for module in (ROOT / "tests").rglob("test_*.py"):
        if "mark.rule(" in (text := module.read_text()):
            yield from _find_marks_of_module(ast.parse(text))


def _find_marks_of_module(module: ast.Module) -> Iterator[str]:
    """Yield the rules in the marks of functions, classes and the module, except those of `make test-all`."""
    for node in module.body:
        marks: list[ast.expr] = []
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            marks = node.decorator_list
        elif isinstance(node, ast.Assign):
            marks = [node.value]
        calls = [each for mark in marks for each in ast.walk(mark) if isinstance(each, ast.Call)]
        named = [(ast.unparse(call.func), call.args) for call in calls]
        if "pytest.mark.part" in {name for name, _ in named}:
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark":
                return
            continue
        for name, arguments in named:
            if name == "pytest.mark.rule":
                yield from (ast.literal_eval(argument) for argument in arguments)


def test_marks_are_found_on_functions_classes_and_modules_but_not_in_parts() -> None:
    module = """
        pytestmark = [pytest.mark.anyio, pytest.mark.rule("id-1", "id-2")]
        @pytest.mark.rule("id-3")
        @pytest.mark.rule("id-4")
        def test_one(): ...
        @pytest.mark.rule("id-5")
        @pytest.mark.part("long")
        async def test_other(): ...
        TestAll = pytest.mark.rule("id-6")(All)
    """
    assert list(_find_marks_of_module(ast.parse(dedent(module)))) == ["id-1", "id-2", "id-3", "id-4", "id-6"]
    whole = 'pytestmark = pytest.mark.part("fuzz")\n' + dedent(module)
    assert list(_find_marks_of_module(ast.parse(whole))) == []


def test_every_rule_has_a_unique_number() -> None:
    counted = Counter(rule for rule, _ in _RULE.findall(PAGE.read_text()))
    assert [rule for rule, count in counted.items() if count > 1] == []
    for group in GROUPS:
        numbers = sorted(int(rule.rsplit("-")[-1]) for rule in counted if rule.startswith(f"{group}-"))
        assert numbers == list(range(1, len(numbers) + 1)), group


def test_the_rules_of_a_table_are_in_order() -> None:
    for table in re.findall(r"(?:^\|.*\n)+", PAGE.read_text(), re.MULTILINE):
        numbers = [int(rule.rsplit("-")[-1]) for rule, _ in _RULE.findall(table)]
        assert numbers == sorted(numbers)


def test_every_rule_of_a_tested_part_has_a_test() -> None:
    required = {
        rule for rule, part in _load_rules().items() if part in TESTED_PARTS and rule not in UNTESTED_RULES
    }
    required |= {
        rule
        for rule, part in _load_rules().items()
        if part == "service"
        and rule.partition("-")[0] in TESTED_SERVICE_GROUPS
        and rule not in UNTESTED_RULES
    }
    assert sorted(required - set(_find_rule_marks())) == []


def test_exactly_the_rules_that_are_not_implemented_say_so() -> None:
    planned = re.findall(r"^\| (\S+) \| Planned, not there yet: ", PAGE.read_text(), re.MULTILINE)
    assert set(planned) == UNTESTED_RULES


def test_every_cited_rule_exists() -> None:
    cited = {
        rule
        for directory in ("src", "tests", "docs")
        for path in (ROOT / directory).rglob("*")
        if path.suffix in {".py", ".md", ".table"} and "node_modules" not in path.parts
        for rule in _CITED.findall(path.read_text())
    }
    assert sorted(cited - set(_load_rules())) == []
