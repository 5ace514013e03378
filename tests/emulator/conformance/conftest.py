"""Fixtures: a broker for each worker, and a gateway for each variant that the tests of this directory use.

In `make test` all tests run at the newest version in raw mode; tests whose outcome depends on the mode or on
the version also run where it differs, as marked with `variants.py`. The part `variants` runs all tests in
both modes at three versions.

Gateways end with these tests: at their speed each of them uses a CPU core.
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
    """Generate only tests that will run: each generated test costs a millisecond in every worker."""
    if "variant" not in metafunc.fixturenames:
        return
    mark = metafunc.definition.get_closest_marker("variants")
    quick_variants, all_variants = mark.args if mark is not None else ([NEWEST], VARIANTS)
    params = [pytest.param(each, id=str(each)) for each in quick_variants]
    if "variants" in selected_parts(metafunc.config):
        other_variants = [each for each in all_variants if each not in quick_variants]
        params += [
            pytest.param(each, id=str(each), marks=pytest.mark.part("variants")) for each in other_variants
        ]
    metafunc.parametrize("variant", params, indirect=True, scope="package")


@pytest.fixture(scope="package")
def broker_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the data directory of the broker."""
    return tmp_path_factory.mktemp("rows-broker")


@pytest.fixture(scope="package")
def broker(broker_directory: Path) -> Iterator[ServerAddress]:
    """Start a broker that drops nothing for a slow subscriber, and that logs subscriptions."""
    log_settings = [f"log_type {each}" for each in ("error", "warning", "notice", "subscribe")]
    with Mosquitto(
        broker_directory, "max_queued_messages 0", "max_inflight_messages 0", *log_settings
    ) as mosquitto:
        yield mosquitto.address


@pytest.fixture(scope="package")
def broker_log(broker: ServerAddress, broker_directory: Path) -> Path:
    """Return the log file of the broker."""
    assert broker.port
    return broker_directory / "mosquitto.log"


@pytest.fixture(scope="package")
def variant(request: pytest.FixtureRequest) -> Variant:
    """Return the mode and version of the gateway."""
    variant_param: Variant = request.param
    return variant_param


@pytest.fixture(scope="package")
def gateway(broker: ServerAddress, variant: Variant) -> Iterator[GatewayProcess]:
    """Run a gateway with the whole site."""
    with run_gateway(broker, variant, site) as emulated:
        yield emulated


@pytest.fixture(scope="package")
def silent_gateway(broker: ServerAddress, variant: Variant) -> Iterator[GatewayProcess]:
    """Run a gateway whose devices all report and never respond."""
    with run_gateway(broker, variant, small_site, "--fault", "silent=1") as emulated:
        yield emulated


@pytest.fixture(scope="package")
def boundary(broker: ServerAddress, request: pytest.FixtureRequest) -> Iterator[GatewayProcess]:
    """Run a gateway at the version that a test names, the first with some feature."""
    with run_gateway(broker, request.param, site) as emulated:
        yield emulated
