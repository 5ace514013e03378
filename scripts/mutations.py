"""Mutants (small defects) that `mutate.py` can put into the source, one at a time.

A mutant is identified by its function and text, so that it is found again after other changes.
"""

from __future__ import annotations

import ast
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

ROOT: Final = Path(__file__).resolve().parent.parent
PACKAGE: Final = Path("src/meshfleet")

OPERATOR_TEXTS: Final[dict[type[ast.AST], str]] = {
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
    ast.Eq: "==",
    ast.NotEq: "!=",
    ast.Is: "is",
    ast.IsNot: "is not",
    ast.In: "in",
    ast.NotIn: "not in",
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.FloorDiv: "//",
    ast.And: "and",
    ast.Or: "or",
}
_PAIRS: Final = ("< <=", "> >=", "== !=", "is is_not", "in not_in", "+ -", "* //", "and or")
SWAPS: Final = {
    one.replace("_", " "): other.replace("_", " ")
    for pair in _PAIRS
    for one, other in (pair.split(), reversed(pair.split()))
}


@dataclass(frozen=True)
class Mutant:
    """Change in a function: the n-th occurrence (`place`) of the text `before` is replaced by `after`."""

    package: str
    file: str
    function: str
    place: int
    before: str
    after: str


class MutationFinder(ast.NodeVisitor):
    """Finder of all possible mutants in the functions of a module."""

    def __init__(self, file: Path) -> None:
        self.text = (ROOT / file).read_text()
        self.package = package_of(file)
        self.file = file.as_posix()
        self.found: list[tuple[Mutant, ast.expr | ast.stmt]] = []
        self._scope: list[str] = []
        self._is_inside = False
        self._seen: Counter[tuple[str, str]] = Counter()
        self.visit(ast.parse(self.text))

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._scope.append(node.name)
        self._visit_all(node.body)
        self._scope.pop()

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        self._scope.append(node.name)
        was_inside, self._is_inside = self._is_inside, True
        has_docstring = isinstance(node.body[0], ast.Expr) and isinstance(node.body[0].value, ast.Constant)
        self._visit_all(node.body[1:] if has_docstring else node.body)
        self._is_inside = was_inside
        self._scope.pop()

    visit_AsyncFunctionDef = visit_FunctionDef  # noqa: N815 # name given by ast

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)

    def visit_Expr(self, node: ast.Expr) -> None:
        call = node.value.value if isinstance(node.value, ast.Await) else node.value
        if isinstance(call, ast.Call) and not _is_logging(call):
            self._add(node, "pass")
            self.generic_visit(node)

    def visit_Raise(self, node: ast.Raise) -> None:
        self._add(node, "pass")

    def visit_Return(self, node: ast.Return) -> None:
        if node.value is not None and not isinstance(node.value, ast.Constant):
            self._add(node, "return None")
        self.generic_visit(node)

    def visit_Break(self, node: ast.Break) -> None:
        self._add(node, "continue")

    def visit_Continue(self, node: ast.Continue) -> None:
        self._add(node, "break")

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        if isinstance(node.op, ast.Not):
            self._add(node, f"({ast.unparse(node.operand)})")
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, bool):
            self._add(node, str(not node.value))
        elif isinstance(node.value, int):
            self._add(node, str(node.value + 1))

    def visit_Compare(self, node: ast.Compare) -> None:
        self._swap(node, [node.left, *node.comparators], node.ops)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        if not any(_is_text(each) for each in (node.left, node.right)):
            self._swap(node, [node.left, node.right], [node.op])

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        self._swap(node, node.values, [node.op] * (len(node.values) - 1))

    def _swap(self, node: ast.expr, operands: list[ast.expr], operators: Sequence[ast.AST]) -> None:
        """Add a mutant with the first operator, and all equal ones in the chain, swapped."""
        signs = [OPERATOR_TEXTS.get(type(each), "") for each in operators]
        if signs[0] in SWAPS:
            after = [SWAPS[sign] if sign == signs[0] else sign for sign in signs]
            texts = [f"({ast.unparse(each)})" for each in operands]
            rest = [f"{sign} {text}" for sign, text in zip(after, texts[1:], strict=True)]
            self._add(node, f"({' '.join([texts[0], *rest])})")
        self.generic_visit(node)

    def _visit_all(self, nodes: list[ast.stmt]) -> None:
        for node in nodes:
            self.visit(node)

    def _add(self, node: ast.expr | ast.stmt, after: str) -> None:
        if not self._is_inside:
            return
        function, before = ".".join(self._scope), ast.unparse(node)
        place = self._seen[function, before]
        self._seen[function, before] += 1
        self.found.append((Mutant(self.package, self.file, function, place, before, after), node))

    def apply(self, mutant: Mutant) -> tuple[str, range] | None:
        """Return the text of the module with a mutant, and the changed lines; None if the code is gone."""
        for each, node in self.found:
            if each == mutant:
                assert node.end_lineno is not None and node.end_col_offset is not None  # noqa: PT018, S101
                lines = [line.encode() for line in self.text.splitlines(keepends=True)]
                start = sum(map(len, lines[: node.lineno - 1])) + node.col_offset
                end = sum(map(len, lines[: node.end_lineno - 1])) + node.end_col_offset
                whole = b"".join(lines)
                changed = whole[:start] + mutant.after.encode() + whole[end:]
                return changed.decode(), range(node.lineno, node.end_lineno + 1)
        return None


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))


def _is_logging(call: ast.Call) -> bool:
    return ast.unparse(call.func).lstrip("_").startswith("log.")


def package_of(file: Path) -> str:
    """Return the package that a file counts for: the first directory, in the service the first two."""
    parts = file.relative_to(PACKAGE).parts[:-1]
    return "/".join(parts[:2] if parts[:1] == ("service",) else parts[:1])
