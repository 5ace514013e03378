"""The image of the service: built from a Debian base, and run without any privilege."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import httpx
import msgspec.yaml
import pytest

from tests.cli.programs import log_in
from tests.deployment.container_engine import CONTAINERFILE, ContainerEngine
from tests.eventually import eventually
from tests.external_tools import CONSOLE, require
from tests.servers import NO_TRUSTED_AUTHORITIES, free_port

if TYPE_CHECKING:
    from collections.abc import Iterator

IMAGE = "meshfleet:test"
PASSWORD = "correct-horse-battery"  # noqa: S105 # not a real password


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ContainerEngine]:
    """Build the image of the service, in a storage that is deleted afterwards."""
    require(CONSOLE)  # else the build would need npm
    directory = tmp_path_factory.mktemp("containers")
    with TemporaryDirectory(prefix="podman-") as run_directory:
        engine = ContainerEngine(directory, Path(run_directory))
        engine.create_base()
        engine.build(IMAGE)
        yield engine
    shutil.rmtree(directory)


def get_status(url: str) -> int:
    try:
        return httpx.get(f"{url}/readyz", verify=NO_TRUSTED_AUTHORITIES).status_code
    except httpx.TransportError:
        return 0


@pytest.mark.part("container")
def test_the_service_runs_without_privileges_and_its_volume_survives(engine: ContainerEngine) -> None:
    # In the same test, because building the image takes minutes.
    (image,) = json.loads(engine.podman("image", "inspect", IMAGE))
    config = image["Config"]
    assert config["User"] == "10001:10001"
    assert set(config["ExposedPorts"]) == {"8080/tcp", "1883/tcp", "8883/tcp"}
    assert set(config["Volumes"]) == {"/var/lib/meshfleet"}
    assert image["Healthcheck"]["Test"] == ["CMD", "meshfleet", "healthcheck"]
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    variables = {"MESHFLEET_HTTP": f"127.0.0.1:{port}", "MESHFLEET_MQTT": f"127.0.0.1:{free_port()}"}
    with engine.run(IMAGE, "data", **variables, MESHFLEET_ADMIN_PASSWORD=PASSWORD) as container:
        eventually(lambda: get_status(url) == 200, "a ready service")
        assert engine.podman("exec", container, "id", "--user").strip() == "10001"
        assert log_in(url, PASSWORD).status_code == 200
        assert "<title>" in httpx.get(url, verify=NO_TRUSTED_AUTHORITIES).text  # the console
    with engine.run(IMAGE, "data", **variables, MESHFLEET_ADMIN_PASSWORD="another-" + PASSWORD):
        eventually(lambda: get_status(url) == 200, "a ready service")
        assert log_in(url, PASSWORD).status_code == 200


@pytest.mark.part("container")
def test_hadolint_finds_nothing() -> None:
    program = Path(sys.executable).with_name("hadolint")
    result = subprocess.run([program, CONTAINERFILE], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout) == (0, "")


def test_the_compose_file_runs_the_service_without_privileges() -> None:
    compose = msgspec.yaml.decode(CONTAINERFILE.with_name("compose.yaml").read_bytes())
    assert {name: service.get("profiles") for name, service in compose["services"].items()} == {
        "meshfleet": None,
        "postgres": ["postgres"],
        "prometheus": ["watch"],
        "grafana": ["watch"],
    }
    service = compose["services"]["meshfleet"]
    assert (service["image"], service["read_only"], service["cap_drop"]) == ("meshfleet:local", True, ["ALL"])
    context = CONTAINERFILE.parent / service["build"]["context"]
    assert (context / service["build"]["dockerfile"]).samefile(CONTAINERFILE)


def test_the_compose_file_mounts_files_of_the_package() -> None:
    compose = msgspec.yaml.decode(CONTAINERFILE.with_name("compose.yaml").read_bytes())
    mounted = {
        volume.split(":")[0]
        for service in compose["services"].values()
        for volume in service.get("volumes", ())
        if volume.startswith(".")
    }
    assert len(mounted) == 6
    missing = {path for path in mounted if not (CONTAINERFILE.parent / path).exists()}
    assert missing == {"./prometheus.key"}  # created by the user
