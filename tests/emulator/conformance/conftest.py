"""A broker for each worker, and a gateway for each variant that tests of this folder ask for.

In `make test` all tests run at the newest version in raw mode, and those whose outcome depends on the mode or
on the version also where it differs, as `variants.py` lets them say. The part `variants` runs all tests in
both modes at three versions.

Gateways end with these tests: at their speed they would take a core from all others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.emulator.conformance.gateway_process import run_gateway
from tests.emulator.conformance.site import site, small_site
from tests.emulator.conformance.variants import NEWEST, VARIANTS, Variant
from tests.selection import selected_parts
from tests.servers import Mosquitto

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.emulator.conformance.gateway_process import GatewayProcess
    from tests.servers import ServerAddress


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Make no test that would not run: to make it takes a millisecond in every worker."""
    if "variant" not in metafunc.fixturenames:
        return
    mark = metafunc.definition.get_closest_marker("variants")
    quick, every = mark.args if mark is not None else ([NEWEST], VARIANTS)
    params = [pytest.param(each, id=str(each)) for each in quick]
    if "variants" in selected_parts(metafunc.config):
        rest = [each for each in every if each not in quick]
        params += [pytest.param(each, id=str(each), marks=pytest.mark.part("variants")) for each in rest]
    metafunc.parametrize("variant", params, indirect=True, scope="package")


@pytest.fixture(scope="package")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the broker lives."""
    return tmp_path_factory.mktemp("rows-broker")


@pytest.fixture(scope="package")
def broker(folder: Path) -> Iterator[ServerAddress]:
    """A broker that loses nothing on its way to a slow reader, and logs who subscribes to what."""
    logged = [f"log_type {each}" for each in ("error", "warning", "notice", "subscribe")]
    with Mosquitto(folder, "max_queued_messages 0", "max_inflight_messages 0", *logged) as mosquitto:
        yield mosquitto.address


@pytest.fixture(scope="package")
def broker_log(broker: ServerAddress, folder: Path) -> Path:
    """What the broker says of its clients."""
    assert broker.port
    return folder / "mosquitto.log"


@pytest.fixture(scope="package")
def variant(request: pytest.FixtureRequest) -> Variant:
    """A mode and a version."""
    chosen: Variant = request.param
    return chosen


@pytest.fixture(scope="package")
def gateway(broker: ServerAddress, variant: Variant) -> Iterator[GatewayProcess]:
    """A gateway over the whole site."""
    with run_gateway(broker, variant, site) as emulated:
        yield emulated


@pytest.fixture(scope="package")
def unheeded(broker: ServerAddress, variant: Variant) -> Iterator[GatewayProcess]:
    """A gateway whose devices all report and never answer."""
    with run_gateway(broker, variant, small_site, "--fault", "silent=1") as emulated:
        yield emulated


@pytest.fixture(scope="package")
def boundary(broker: ServerAddress, request: pytest.FixtureRequest) -> Iterator[GatewayProcess]:
    """A gateway at a version that a test names, where it differs from the one before."""
    with run_gateway(broker, request.param, site) as emulated:
        yield emulated
