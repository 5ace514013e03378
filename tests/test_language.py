"""Checks of wording that a machine can make: words to avoid, and how docstrings begin."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import NamedTuple, TypeAlias

Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef

ROOT = Path(__file__).parent.parent

# These words make people of things ("somebody connects"): say client, user, operator or process.
AVOIDED_WORDS = re.compile(r"\b(somebody|nobody|anybody|everybody|whoever|anew)\b", re.IGNORECASE)

CHECKED_SUFFIXES = {".py", ".ts", ".js", ".mjs", ".svelte", ".md", ".toml", ".html", ".css", ".sh"}

# A docstring that begins like this cannot be understood without the text above it.
DEPENDENT_OPENINGS = re.compile(r"(And|But|Or|It|The same|What|Who|Whom|That|Those|These)\b")

# Words that are no verbs, with which docstrings of functions often begin.
NO_VERBS = frozenset(
    {
        *("A", "An", "The", "All", "Any", "Each", "Every", "No", "None", "Not", "One", "Some", "Whether"),
        *("Its", "Their", "Our", "This", "There", "Here", "How", "When", "Where", "Which", "Why", "While"),
        *("As", "At", "By", "For", "From", "If", "In", "Of", "On", "To", "With", "Without", "So", "Only"),
    }
)

PROPERTY_DECORATORS = {"property", "cached_property"}


class Docstring(NamedTuple):
    """Docstring of a module, class, function or attribute."""

    place: str
    text: str
    is_of_function: bool
    """Whether it belongs to a function that is not a property."""

    def __str__(self) -> str:
        return f"{self.place}: {self.text.splitlines()[0]}"


def test_no_words_for_people_stand_for_things() -> None:
    offenders = [
        f"{path}:{number}: {found.group()}"
        for path in _tracked_files()
        if path.suffix in CHECKED_SUFFIXES and path.name != Path(__file__).name
        for number, line in enumerate((ROOT / path).read_text().splitlines(), 1)
        if (found := AVOIDED_WORDS.search(line))
    ]
    assert not offenders, "\n".join(offenders)


def test_every_docstring_can_be_understood_alone() -> None:
    offenders = [str(each) for each in _docstrings() if DEPENDENT_OPENINGS.match(each.text)]
    assert not offenders, "\n".join(offenders)


def test_docstrings_of_functions_begin_with_a_verb() -> None:
    offenders = [
        str(each)
        for each in _docstrings()
        if each.is_of_function and re.split(r"\W", each.text, maxsplit=1)[0] in NO_VERBS
    ]
    assert not offenders, "\n".join(offenders)


@cache
def _tracked_files() -> list[Path]:
    git = shutil.which("git")
    assert git
    listing = subprocess.run([git, "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
    return [path for line in listing.stdout.splitlines() if (ROOT / (path := Path(line))).is_file()]


@cache
def _docstrings() -> list[Docstring]:
    return [
        docstring
        for path in _tracked_files()
        if path.suffix == ".py"
        for docstring in _docstrings_in(str(path), ast.parse((ROOT / path).read_text()))
    ]


def _docstrings_in(
    path: str, block: ast.Module | ast.ClassDef | ast.AsyncFunctionDef | ast.FunctionDef
) -> list[Docstring]:
    """List the docstrings of a block of code and of its attributes, classes and functions."""
    is_function = isinstance(block, Function) and not _is_property(block)
    docstrings = []
    for index, statement in enumerate(block.body):
        match statement:
            case ast.Expr(value=ast.Constant(value=str(text))):
                place = f"{path}:{statement.lineno}"
                docstrings.append(Docstring(place, text.strip(), is_of_function=is_function and index == 0))
            case ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef():
                docstrings += _docstrings_in(path, statement)
    return docstrings


def _is_property(function: Function) -> bool:
    names = (getattr(each, "attr", getattr(each, "id", "")) for each in function.decorator_list)
    return not PROPERTY_DECORATORS.isdisjoint(names)
