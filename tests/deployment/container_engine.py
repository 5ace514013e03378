"""buildah and podman with a storage of their own, and a base image made from Debian packages."""

from __future__ import annotations

import os
import subprocess
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.external_tools import BUILDAH, MMDEBSTRAP, PODMAN, RUNC, require

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
CONTAINERFILE = ROOT / "src" / "meshfleet" / "deploy" / "container" / "Containerfile"

_BASE = "localhost/base"
_AUTHORITIES = Path("/etc/ssl/certs")
_SUITE = "bookworm"
"""Debian 12, the oldest Debian with a Python that the service supports."""
_PACKAGES = "python3,python3-venv,ca-certificates"
# Files may be on a file system without overlays, and the system may have the old control groups.
_RUN_OPTIONS = ("--network", "host", "--read-only", "--cap-drop", "all", "--no-healthcheck")
_LIMITS = ("--ulimit", "nofile=20000:20000", "--ulimit", "nproc=4096:4096")


class ContainerEngine:
    """Builds and runs images in directories of its own.

    The path of `run_directory` must be short: podman refuses one of more than 50 characters.
    """

    def __init__(self, directory: Path, run_directory: Path) -> None:
        self._directory = directory
        self._storage = (
            *("--storage-driver", "vfs"),
            *("--root", str(directory / "storage"), "--runroot", str(run_directory)),
        )
        self._runtime = ("--runtime", str(require(RUNC)), "--cgroup-manager", "cgroupfs")

    def create_base(self) -> None:
        """Create the base image. If this machine cannot, skip the test; with CI=true fail it."""
        archive = self._directory / "base.tar"
        try:
            _run(require(MMDEBSTRAP), "--variant=minbase", f"--include={_PACKAGES}", _SUITE, str(archive))
            self.podman("import", str(archive), _BASE)
            self.podman("run", "--rm", *_RUN_OPTIONS, *_LIMITS, _BASE, "true")
        except subprocess.CalledProcessError as exc:
            reason = f"containers cannot be made here: {exc.cmd[0]}: {exc.stderr[-500:]}"
            if os.environ.get("CI") == "true":
                pytest.fail(reason)
            pytest.skip(reason)
        archive.unlink()

    def build(self, tag: str) -> None:
        """Build the image of the service."""
        options = ["--isolation", "chroot", "--network", "host", "--format", "docker", "--layers=false"]
        options += ["--build-arg", f"BASE={_BASE}"]
        for name in ("PIP_INDEX_URL", "npm_config_registry"):
            options += ["--build-arg", name] if name in os.environ else []
        if _AUTHORITIES.is_dir():  # the network of this machine may have an authority of its own
            options += ["--volume", f"{_AUTHORITIES}:{_AUTHORITIES}:ro"]
        file = ["--file", str(CONTAINERFILE), str(ROOT)]
        _run(require(BUILDAH), *self._storage, "bud", *options, "--tag", tag, *file)

    @contextmanager
    def run(self, image: str, volume: str, **variables: str) -> Iterator[str]:
        """Run a container with a volume for its data, and remove the container afterwards. Yield its id."""
        environment = [f"--env={name}={value}" for name, value in variables.items()]
        options = [*_RUN_OPTIONS, *_LIMITS, "--volume", f"{volume}:/var/lib/meshfleet", *environment]
        container = self.podman("run", "--detach", *options, image).strip()
        try:
            yield container
        finally:
            self.podman("stop", container)
            self.podman("rm", container)

    def podman(self, *arguments: str) -> str:
        """Run podman, and return its output."""
        return _run(require(PODMAN), *self._storage, *self._runtime, *arguments)


def _run(program: Path, *arguments: str) -> str:
    command = [str(program), *arguments]
    try:
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout
    except subprocess.CalledProcessError as exc:
        exc.add_note(exc.stderr[-2000:])
        raise
