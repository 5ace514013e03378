"""Mutation testing: measure how many small defects in the source the tests detect.

    scripts/mutate.py cover                 run all tests, and record which of them execute each line
    scripts/mutate.py choose mutants.json   choose the mutants; the same seed chooses the same ones
    scripts/mutate.py run mutants.json results.json
    scripts/mutate.py table results.json [later.json]

Run it with `.venv/bin/python`. `cover` discards its earlier results.

A mutant is run against the fastest tests that execute its line: at most 30 test functions, which together
took at most 30 seconds in their last run. If the fastest one took longer, it is run alone.

- found: one of them fails or cannot be imported, but not without the change.
- endless: they do not end within 60 seconds, but do so without the change. This counts as found.
- survived: all of them pass.
- never executed: no test executes the line. This counts as survived.
- unusable: pytest itself fails. This counts as survived.
- unsure: the tests fail, do not end or cannot be imported without the change either. This counts as survived.
- gone: the mutated code is not in the source any more. This does not count as survived.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, ClassVar, Final, Literal

from coverage import CoverageData
from mutations import PACKAGE, ROOT, Mutant, MutationFinder, package_of

if TYPE_CHECKING:
    from collections.abc import Iterator

COVERAGE_FOLDER: Final = ROOT / ".mutation"
"""Directory with the results of `cover`."""

COVERAGE_DATA: Final = COVERAGE_FOLDER / "data"
TIMES: Final = ROOT / ".pytest_cache/v/meshfleet/times"
"""Seconds of each test function, written by tests/timing_report.py."""

SITE: Final = PACKAGE / "service/console/site"
"""Built console, which is not in git."""

SEED: Final = 28
MUTANTS: Final = 200
MIN_PER_PACKAGE: Final = 5
"""Minimum number of mutants per package; the others are drawn from all packages."""

MAX_TESTS: Final = 30
MAX_TEST_SECONDS: Final = 30.0
TIMEOUT: Final = 60.0

FAILED: Final = 1
UNREADABLE: Final = 2
UNUSABLE: Final = 4
"""Exit codes of pytest: a test failed; a test or a conftest cannot be imported, which a mutant may cause."""

UNKNOWN: Final = ("unusable", "unsure")
SURVIVED: Final = {"survived", "never executed", *UNKNOWN}
"""Verdicts that count as survived: no test is known to detect the mutant."""

Outcome = Literal["passed", "failed", "endless", "unusable"]
Verdict = Literal["found", "endless", "survived", "never executed", "gone", "unusable", "unsure"]


@dataclass(frozen=True)
class Result:
    """Verdict on a mutant."""

    mutant: Mutant
    verdict: Verdict
    tests: int
    by: str = ""


# --- Choose mutants ---


def choose_mutants(target: Path) -> None:
    packages: defaultdict[str, list[Mutant]] = defaultdict(list)
    for file in sorted((ROOT / PACKAGE).rglob("*.py")):
        relative = file.relative_to(ROOT)
        if "versions" not in relative.parts:  # applied migrations are never changed
            packages[package_of(relative)] += [mutant for mutant, _ in MutationFinder(relative).found]
    generator = random.Random(SEED)  # noqa: S311 # not for cryptography
    chosen: list[Mutant] = []
    rest: list[Mutant] = []
    for _, mutants in sorted(packages.items()):
        generator.shuffle(mutants)
        chosen += mutants[:MIN_PER_PACKAGE]
        rest += mutants[MIN_PER_PACKAGE:]
    chosen += generator.sample(rest, MUTANTS - len(chosen))
    chosen.sort(key=lambda each: (each.file, each.function, each.before, each.place))
    target.write_text(json.dumps([asdict(each) for each in chosen], indent=1) + "\n")
    print(f"{len(chosen)} of {sum(map(len, packages.values()))} changes in {len(packages)} packages")


# --- Record and use coverage ---


def record_coverage(tests: list[str]) -> None:
    """Run the tests and the programs they start under coverage, with the names of the tests as contexts."""
    shutil.rmtree(COVERAGE_FOLDER, ignore_errors=True)  # results of deleted tests must not count
    COVERAGE_FOLDER.mkdir()
    config_file = COVERAGE_FOLDER / "coverage.ini"
    config_file.write_text(
        "[run]\nbranch = true\nparallel = true\nsource_pkgs = meshfleet\ncore = ctrace\n"
        f"data_file = {COVERAGE_DATA}\ncontext = ${{PYTEST_CURRENT_TEST-}}\n"
        "disable_warnings = no-data-collected, module-not-measured, module-not-imported\n"
    )
    environment = {
        **os.environ,
        "COVERAGE_PROCESS_START": str(config_file),
        "PYTHONPATH": str(ROOT / "scripts"),
    }
    bin_folder = ROOT / ".venv/bin"
    subprocess.run(
        [bin_folder / "pytest", "-q", "-p", "mutate", *tests], cwd=ROOT, env=environment, check=False
    )
    subprocess.run(
        [bin_folder / "coverage", "combine", "-q", f"--rcfile={config_file}"], cwd=ROOT, check=True
    )
    subprocess.run([bin_folder / "coverage", "report", f"--rcfile={config_file}"], cwd=ROOT, check=True)


def pytest_runtest_logstart(nodeid: str) -> None:
    """Switch the coverage context to a test. Called by pytest, of which this module is a plugin."""
    from coverage import Coverage  # noqa: PLC0415

    if (coverage := Coverage.current()) is not None:
        coverage.switch_context(_function_of(nodeid))


def _function_of(nodeid: str) -> str:
    """Return the test function of a context, without its parameters and phase."""
    return re.sub(r"(\[.*)? \((setup|call|teardown)\)$", "", nodeid).partition("[")[0]


def select_tests(data: CoverageData, seconds: dict[str, float], file: str, lines: range) -> list[str]:
    """Return the tests to run against a mutant: the fastest ones that execute its lines."""
    contexts = data.contexts_by_lineno(str(ROOT / file))
    names = {_function_of(name) for line in lines for name in contexts.get(line, ()) if name}
    existing = filter(_exists, names & seconds.keys())
    chosen: list[str] = []
    remaining = MAX_TEST_SECONDS
    for name in sorted(existing, key=lambda each: seconds[each]):
        if len(chosen) == MAX_TESTS or (chosen and seconds[name] > remaining):
            break
        chosen.append(name)
        remaining -= seconds[name]
    return chosen


@cache
def _exists(test: str) -> bool:
    """Return whether a test still exists: pytest runs no tests at all if it cannot find one of them."""
    file, name = test.split("::")[:2]
    path = ROOT / file
    defined = re.compile(rf"^(async |def |class )*{name}\b", re.MULTILINE)
    return path.exists() and defined.search(path.read_text()) is not None


# --- Run mutants ---


def run_mutants(source: Path, target: Path, workers: int) -> None:
    if not (COVERAGE_DATA.exists() and TIMES.exists()):
        sys.exit("There is no coverage data: run scripts/mutate.py cover first.")
    if not (ROOT / SITE).exists():
        sys.exit("The console is not built: run scripts/build_console.py first.")
    mutants = [Mutant(**each) for each in json.loads(source.read_text())]
    data = CoverageData(str(COVERAGE_DATA))
    data.read()
    seconds: dict[str, float] = json.loads(TIMES.read_text())
    results: list[Result] = []
    copies: SimpleQueue[WorkingCopy] = SimpleQueue()

    def evaluate(mutant: Mutant) -> Result:
        copy = copies.get()
        try:
            return copy.evaluate(mutant, data, seconds)
        finally:
            copies.put(copy)

    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(workers) as threads:
        for number in range(workers):
            copies.put(WorkingCopy(Path(folder) / str(number)))
        for result in threads.map(evaluate, mutants):
            results.append(result)
            print(f"{len(results)}/{len(mutants)} {result.verdict}: {result.mutant}", flush=True)
            target.write_text(json.dumps([asdict(each) for each in results], indent=1) + "\n")


class WorkingCopy:
    """Copy of the files in git, with links to other directories, so that the working tree is unchanged."""

    _passes_unchanged: ClassVar[dict[str, bool]] = {}
    """Whether a test passes here without a mutant; one that does not says nothing about mutants."""

    def __init__(self, root: Path) -> None:
        self._root = root
        listing = subprocess.run(
            ["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True
        )
        for name in filter(None, listing.stdout.split("\0")):
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, root / name)
        for name in (".venv", "tests/node/node_modules", "console/node_modules", "console/generated"):
            (root / name).symlink_to(ROOT / name)
        shutil.copytree(ROOT / SITE, root / SITE)

    def evaluate(self, mutant: Mutant, data: CoverageData, seconds: dict[str, float]) -> Result:
        file = ROOT / mutant.file
        changed = MutationFinder(Path(mutant.file)).apply(mutant) if file.exists() else None
        if changed is None:
            return Result(mutant, "gone", 0)
        text, lines = changed
        unreliable: set[str] = set()
        while tests := [
            each for each in select_tests(data, seconds, mutant.file, lines) if each not in unreliable
        ]:
            try:
                (self._root / mutant.file).write_text(text)
                outcome, by = self._run_tests(tests)
            finally:
                shutil.copy2(file, self._root / mutant.file)
            if not by or self._is_reliable(by):
                return Result(mutant, self._verdict(tests, outcome, by), len(tests), by)
            unreliable.add(by)
        return Result(mutant, "unsure" if unreliable else "never executed", len(unreliable))

    def _verdict(self, tests: list[str], outcome: Outcome, by: str) -> Verdict:
        """Return the verdict for an outcome. Repeat the tests without the mutant if the cause is unclear."""
        if outcome == "passed":
            return "survived"
        if outcome == "unusable":
            return "unusable"
        # The mutant is not the cause if the machine is busy or a module is missing in this copy.
        if not by and self._run_tests(tests) == (outcome, ""):
            return "unsure"
        return "endless" if outcome == "endless" else "found"

    def _is_reliable(self, test: str) -> bool:
        if test not in self._passes_unchanged:
            self._passes_unchanged[test] = self._run_tests([test])[0] == "passed"
        return self._passes_unchanged[test]

    def _run_tests(self, tests: list[str]) -> tuple[Outcome, str]:
        """Run these tests. Return the outcome, and the test function that failed first."""
        process = subprocess.Popen(
            [".venv/bin/python", "-m", "pytest", "-n0", "-xq", "--no-header", "--tb=line", *tests],
            cwd=self._root,
            env={**os.environ, "PYTHONPATH": str(self._root / "src"), "CI": "true"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,  # so that programs of a hanging test can be killed with it
        )
        try:
            output, _ = process.communicate(timeout=TIMEOUT)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            return "endless", ""
        if process.returncode == 0:
            return "passed", ""
        is_unreadable = "ERROR collecting" in output or "Error while loading conftest" in output
        if process.returncode in {FAILED, UNREADABLE} or (process.returncode == UNUSABLE and is_unreadable):
            failed = re.search(r"^(?:FAILED|ERROR) (tests/\S+::[^\[\s]+)", output, re.MULTILINE)
            return "failed", failed[1] if failed else ""
        print(f"pytest itself fails with status {process.returncode}:\n{output}", file=sys.stderr)
        return "unusable", ""


# --- Report ---


def format_table(files: list[Path]) -> Iterator[str]:
    """Yield a table in Markdown: the mutants of each package, and how many survived in each run."""
    runs = [[Result(**each) for each in json.loads(file.read_text())] for file in files]
    for results in runs:
        results[:] = [Result(Mutant(**each.mutant), each.verdict, each.tests, each.by) for each in results]  # type: ignore[arg-type]
    yield "| package | mutants |" + "".join(f" survived in {file.stem} |" for file in files)
    yield "|---|---|" + "---|" * len(files)
    totals = [0] * (1 + len(runs))
    for package in sorted({each.mutant.package for each in runs[0]}):
        of_package = [[each for each in results if each.mutant.package == package] for results in runs]
        row = [
            len(of_package[0]),
            *(sum(each.verdict in SURVIVED for each in results) for results in of_package),
        ]
        totals = [sum(pair) for pair in zip(totals, row, strict=True)]
        yield f"| {package or '(top)'} | " + " | ".join(map(str, row)) + " |"
    yield "| all | " + " | ".join(map(str, totals)) + " |"
    for file, results in zip(files, runs, strict=True):
        counts = [(sum(each.verdict == verdict for each in results), verdict) for verdict in UNKNOWN]
        if any(count for count, _ in counts):
            summary = " and ".join(f"{count} {verdict}" for count, verdict in counts)
            yield f"\nCounted as survived in {file.stem}: {summary}."
        if gone := sum(each.verdict == "gone" for each in results):
            yield f"\nNot counted as survived in {file.stem}: {gone} gone, as the source has changed there."


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(required=True, dest="command")
    commands.add_parser("cover").add_argument("tests", nargs="*")
    commands.add_parser("choose").add_argument("target", type=Path)
    run_parser = commands.add_parser("run")
    run_parser.add_argument("mutants", type=Path)
    run_parser.add_argument("results", type=Path)
    run_parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    commands.add_parser("table").add_argument("results", type=Path, nargs="+")
    arguments = parser.parse_args()
    match arguments.command:
        case "cover":
            record_coverage(arguments.tests)
        case "choose":
            choose_mutants(arguments.target)
        case "run":
            run_mutants(arguments.mutants, arguments.results, arguments.workers)
        case _:
            sys.stdout.writelines(f"{line}\n" for line in format_table(arguments.results))


if __name__ == "__main__":
    main()
