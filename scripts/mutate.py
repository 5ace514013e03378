"""Find out how many small defects the tests notice: change one place of the source after the other.

    scripts/mutate.py cover                 run all tests, and note which of them execute each line
    scripts/mutate.py choose mutants.json   choose the places; the same seed chooses the same ones
    scripts/mutate.py run mutants.json results.json
    scripts/mutate.py table results.json [later.json]

A mutant is run against the quickest tests that execute its line, at most 30 of them and 30 seconds of their
time. It is found when one of them fails, or when they are not done after 60 seconds: then it waits for ever.
A mutant that no test executes has survived. Places are noted by function and text, so that they are found
again after other changes.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, ClassVar, Final, Literal

from coverage import CoverageData

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

ROOT: Final = Path(__file__).resolve().parent.parent
PACKAGE: Final = Path("src/meshfleet")
KEPT: Final = ROOT / ".mutation"
"""What `cover` found out."""

SEED: Final = 28
MUTANTS: Final = 200
LEAST: Final = 5
"""Mutants of each package; the others are shared out by size."""

TESTS: Final = 30
BUDGET: Final = 30.0
PATIENCE: Final = 60.0

FAILED: Final = 1
UNREADABLE: Final = 2
UNUSABLE: Final = 4
"""Statuses of pytest: a test failed; a test or a conftest cannot be imported, which a mutant may cause."""

SIGNS: Final[dict[type[ast.AST], str]] = {
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
    """One change: in this function, the text at the n-th place that reads `before`."""

    package: str
    file: str
    function: str
    place: int
    before: str
    after: str


@dataclass(frozen=True)
class Result:
    """What became of a mutant."""

    mutant: Mutant
    verdict: Literal["found", "endless", "survived", "never executed", "gone"]
    tests: int
    by: str = ""


# Which changes there are


class Changes(ast.NodeVisitor):
    """All changes that can be made inside of the functions of a module."""

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
        was, self._is_inside = self._is_inside, True
        is_described = isinstance(node.body[0], ast.Expr) and isinstance(node.body[0].value, ast.Constant)
        self._visit_all(node.body[1:] if is_described else node.body)
        self._is_inside = was
        self._scope.pop()

    visit_AsyncFunctionDef = visit_FunctionDef  # noqa: N815 # the name is ast's

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
        """Swap the first operator, and of a row of the same ones all."""
        signs = [SIGNS.get(type(each), "") for each in operators]
        if signs[0] in SWAPS:
            after = [SWAPS[sign] if sign == signs[0] else sign for sign in signs]
            words = [f"({ast.unparse(each)})" for each in operands]
            rest = [f"{sign} {word}" for sign, word in zip(after, words[1:], strict=True)]
            self._add(node, f"({' '.join([words[0], *rest])})")
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

    def with_(self, mutant: Mutant) -> tuple[str, range] | None:
        """Return the text of the module with this change, and the changed lines; None: the place is gone."""
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
    return ast.unparse(call.func).lstrip("_").lower().startswith(("log.", "logger.", "_log.", "self._log."))


def package_of(file: Path) -> str:
    """Return the package that a mutant counts for: the first folder, in the service the second."""
    parts = file.relative_to(PACKAGE).parts[:-1]
    return "/".join(parts[:2] if parts[:1] == ("service",) else parts[:1])


# Choose, once


def choose(target: Path) -> None:
    packages: defaultdict[str, list[Mutant]] = defaultdict(list)
    for file in sorted((ROOT / PACKAGE).rglob("*.py")):
        relative = file.relative_to(ROOT)
        if "versions" not in relative.parts:  # a migration that ran is never changed
            packages[package_of(relative)] += [mutant for mutant, _ in Changes(relative).found]
    chance = random.Random(SEED)  # noqa: S311 # no secret
    chosen: list[Mutant] = []
    rest: list[Mutant] = []
    for _, mutants in sorted(packages.items()):
        chance.shuffle(mutants)
        chosen += mutants[:LEAST]
        rest += mutants[LEAST:]
    chosen += chance.sample(rest, MUTANTS - len(chosen))
    chosen.sort(key=lambda each: (each.file, each.function, each.before, each.place))
    target.write_text(json.dumps([asdict(each) for each in chosen], indent=1) + "\n")
    print(f"{len(chosen)} of {sum(map(len, packages.values()))} changes in {len(packages)} packages")


# Which tests execute a line


def cover(tests: list[str]) -> None:
    """Run the tests under coverage, each with its name as context; programs that they start as well."""
    KEPT.mkdir(exist_ok=True)
    rules = KEPT / "coverage.ini"
    rules.write_text(
        "[run]\nbranch = true\nparallel = true\nsource_pkgs = meshfleet\ncore = ctrace\n"
        f"data_file = {KEPT / 'data'}\ncontext = ${{PYTEST_CURRENT_TEST-}}\n"
        "disable_warnings = no-data-collected, module-not-measured, module-not-imported\n"
    )
    environment = {**os.environ, "COVERAGE_PROCESS_START": str(rules), "PYTHONPATH": str(ROOT / "scripts")}
    programs = ROOT / ".venv/bin"
    subprocess.run(
        [programs / "pytest", "-q", "-p", "mutate", *tests], cwd=ROOT, env=environment, check=False
    )
    subprocess.run(
        [programs / "coverage", "combine", "-q", "--append", f"--rcfile={rules}"], cwd=ROOT, check=True
    )
    subprocess.run([programs / "coverage", "report", f"--rcfile={rules}"], cwd=ROOT, check=True)


def pytest_runtest_logstart(nodeid: str) -> None:
    """Let what is executed from now on count for this test. pytest calls it: this module is its plugin."""
    from coverage import Coverage  # noqa: PLC0415

    if (measuring := Coverage.current()) is not None:
        measuring.switch_context(_function_of(nodeid))


def _function_of(nodeid: str) -> str:
    """Return the test function, without its parameters and without the phase that programs are told."""
    return re.sub(r"(\[.*)? \((setup|call|teardown)\)$", "", nodeid).partition("[")[0]


def tests_of(data: CoverageData, seconds: dict[str, float], file: str, lines: range) -> list[str]:
    """Return the tests to run against a mutant: the quickest ones that execute it."""
    contexts = data.contexts_by_lineno(str(ROOT / file))
    names = {_function_of(name) for line in lines for name in contexts.get(line, ()) if name}
    chosen: list[str] = []
    left = BUDGET
    for name in sorted(names & seconds.keys(), key=lambda each: seconds[each]):
        if len(chosen) == TESTS or (chosen and seconds[name] > left):
            break
        chosen.append(name)
        left -= seconds[name]
    return chosen


# Run them


def run(source: Path, target: Path, workers: int) -> None:
    mutants = [Mutant(**each) for each in json.loads(source.read_text())]
    data = CoverageData(str(KEPT / "data"))
    data.read()
    seconds: dict[str, float] = json.loads((ROOT / ".pytest_cache/v/meshfleet/times").read_text())
    results: list[Result] = []
    copies: SimpleQueue[Copy] = SimpleQueue()

    def judge(mutant: Mutant) -> Result:
        copy = copies.get()
        try:
            return copy.judge(mutant, data, seconds)
        finally:
            copies.put(copy)

    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(workers) as threads:
        for number in range(workers):
            copies.put(Copy(Path(folder) / str(number)))
        for result in threads.map(judge, mutants):
            results.append(result)
            print(f"{len(results)}/{len(mutants)} {result.verdict}: {result.mutant}", flush=True)
            target.write_text(json.dumps([asdict(each) for each in results], indent=1) + "\n")


class Copy:
    """A copy of what git knows, with links to what it does not, so that nobody's work is changed."""

    _sound: ClassVar[dict[str, bool]] = {}
    """Whether a test passes here without any change: one that does not says nothing about a mutant."""

    def __init__(self, root: Path) -> None:
        self._root = root
        known = subprocess.run(
            ["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True
        )
        for name in filter(None, known.stdout.split("\0")):
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, root / name)
        for name in (".venv", "tests/node/node_modules", "console/node_modules", "console/generated"):
            (root / name).symlink_to(ROOT / name)
        shutil.copytree(ROOT / PACKAGE / "service/console/site", root / PACKAGE / "service/console/site")

    def judge(self, mutant: Mutant, data: CoverageData, seconds: dict[str, float]) -> Result:
        file = ROOT / mutant.file
        changed = Changes(Path(mutant.file)).with_(mutant) if file.exists() else None
        if changed is None:
            return Result(mutant, "gone", 0)
        text, lines = changed
        refuted: set[str] = set()
        while tests := [each for each in tests_of(data, seconds, mutant.file, lines) if each not in refuted]:
            try:
                (self._root / mutant.file).write_text(text)
                status, by = self._test(tests)
            finally:
                shutil.copy2(file, self._root / mutant.file)
            if status is None:
                return Result(mutant, "endless", len(tests))
            if status == 0:
                return Result(mutant, "survived", len(tests))
            if not by or self._is_sound(by):
                return Result(mutant, "found", len(tests), by)
            refuted.add(by)
        return Result(mutant, "never executed", 0)

    def _is_sound(self, test: str) -> bool:
        if test not in self._sound:
            self._sound[test] = self._test([test])[0] == 0
        return self._sound[test]

    def _test(self, tests: list[str]) -> tuple[int | None, str]:
        """Return the status of pytest, None if it does not end, and the test function that failed first."""
        process = subprocess.Popen(
            [".venv/bin/python", "-m", "pytest", "-n0", "-xq", "--no-header", "--tb=line", *tests],
            cwd=self._root,
            env={**os.environ, "PYTHONPATH": str(self._root / "src"), "CI": "true"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,  # so that the programs of a test that waits for ever end with it
        )
        try:
            said, _ = process.communicate(timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            return None, ""
        is_told = process.returncode in {0, FAILED, UNREADABLE}
        is_unreadable = "ERROR collecting" in said or "Error while loading conftest" in said
        if not is_told and not (process.returncode == UNUSABLE and is_unreadable):
            raise RuntimeError(f"pytest itself fails:\n{said}")
        failed = re.search(r"^(?:FAILED|ERROR) (tests/\S+::[^\[\s]+)", said, re.MULTILINE)
        return process.returncode, failed[1] if failed else ""


# Tell


def table(files: list[Path]) -> Iterator[str]:
    """Yield a table in Markdown: the mutants of each package, and how many survived in each run."""
    runs = [[Result(**each) for each in json.loads(file.read_text())] for file in files]
    for one in runs:
        one[:] = [Result(Mutant(**each.mutant), each.verdict, each.tests, each.by) for each in one]  # type: ignore[arg-type]
    yield "| package | mutants |" + "".join(f" survived in {file.stem} |" for file in files)
    yield "|---|---|" + "---|" * len(files)
    totals = [0] * (1 + len(runs))
    for package in sorted({each.mutant.package for each in runs[0]}):
        own = [[each for each in one if each.mutant.package == package] for one in runs]
        row = [
            len(own[0]),
            *(sum(each.verdict in {"survived", "never executed"} for each in one) for one in own),
        ]
        totals = [sum(pair) for pair in zip(totals, row, strict=True)]
        yield f"| {package or '(top)'} | " + " | ".join(map(str, row)) + " |"
    yield "| all | " + " | ".join(map(str, totals)) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(required=True, dest="command")
    commands.add_parser("cover").add_argument("tests", nargs="*")
    commands.add_parser("choose").add_argument("target", type=Path)
    running = commands.add_parser("run")
    running.add_argument("mutants", type=Path)
    running.add_argument("results", type=Path)
    running.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    commands.add_parser("table").add_argument("results", type=Path, nargs="+")
    asked = parser.parse_args()
    match asked.command:
        case "cover":
            cover(asked.tests)
        case "choose":
            choose(asked.target)
        case "run":
            run(asked.mutants, asked.results, asked.workers)
        case _:
            sys.stdout.writelines(f"{line}\n" for line in table(asked.results))


if __name__ == "__main__":
    main()
