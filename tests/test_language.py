"""Checks of the language that a machine can see: words to avoid, and how docstrings begin."""

from __future__ import annotations

import ast
import re
import subprocess
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parent.parent

# People stand for things in these words ("somebody connects"); say client, user, operator or process.
AVOIDED_WORDS = ("somebody", "nobody", "anybody", "everybody", "anew", "whoever")

CHECKED_SUFFIXES = {".py", ".ts", ".js", ".mjs", ".svelte", ".md", ".toml", ".html", ".css", ".sh"}

# A docstring that begins like this leans on what stands above it.
LEANING_OPENINGS = ("And", "But", "Or", "It", "The same", "What", "Who", "Whom", "That", "Those", "These")

# Words with which a function's docstring does not begin with a verb.
NOT_VERBS = frozenset(
    {
        *("A", "An", "The", "All", "Any", "Each", "Every", "No", "None", "Not", "One", "Some", "Whether"),
        *("Its", "Their", "Our", "This", "There", "Here", "How", "When", "Where", "Which", "Why", "While"),
        *("As", "At", "By", "For", "From", "If", "In", "Of", "On", "To", "With", "Without", "So", "Only"),
    }
)

PROPERTY_DECORATORS = {"property", "cached_property", "hybrid_property"}


def test_words_for_people_do_not_stand_for_things() -> None:
    pattern = re.compile(rf"\b({'|'.join(AVOIDED_WORDS)})\b", re.IGNORECASE)
    offenders = [
        f"{path}:{number}: {found.group()}"
        for path in _tracked_files()
        if path.suffix in CHECKED_SUFFIXES and path != Path("tests/test_language.py")
        for number, line in enumerate((ROOT / path).read_text().splitlines(), 1)
        if (found := pattern.search(line))
    ]
    assert not offenders, "\n".join(offenders)


def test_docstrings_stand_alone() -> None:
    pattern = re.compile(rf"({'|'.join(LEANING_OPENINGS)})\b")
    offenders = [
        f"{path}:{line}: {text.splitlines()[0]}"
        for path, line, text, _ in _docstrings()
        if pattern.match(text)
    ]
    assert not offenders, "\n".join(offenders)


def test_docstrings_of_functions_begin_with_a_verb() -> None:
    offenders = [
        f"{path}:{line}: {text.splitlines()[0]}"
        for path, line, text, is_function in _docstrings()
        if is_function and re.split(r"\W", text, maxsplit=1)[0] in NOT_VERBS
    ]
    assert not offenders, "\n".join(offenders)


@cache
def _tracked_files() -> list[Path]:
    listing = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],  # noqa: S607 # the developer's git
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return [path for line in listing.stdout.splitlines() if (ROOT / (path := Path(line))).is_file()]


def _docstrings() -> Iterator[tuple[Path, int, str, bool]]:
    """List the docstrings of modules, classes, functions and attributes with their lines.

    The last field says whether it belongs to a function that is not a property.
    """
    for path in _tracked_files():
        if path.suffix != ".py":
            continue
        for node in ast.walk(ast.parse((ROOT / path).read_text())):
            is_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            if not is_function and not isinstance(node, ast.Module | ast.ClassDef):
                continue
            is_function = is_function and not _is_property(node)
            for index, statement in enumerate(node.body):
                match statement:
                    case ast.Expr(value=ast.Constant(value=str(text))):
                        yield path, statement.lineno, text.strip(), is_function and index == 0


def _is_property(node: ast.AST) -> bool:
    assert isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    names = {ast.unparse(decorator).split(".")[-1] for decorator in node.decorator_list}
    return bool(names & PROPERTY_DECORATORS)
