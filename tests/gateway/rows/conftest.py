"""A broker for each worker, and one gateway after the other on it: each mode at each of three versions.

They end with these tests: at their speed they would take a core from all others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.gateway.rows.place import site, small_site
from tests.gateway.rows.running import Variant, running
from tests.servers import Mosquitto

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.gateway.rows.running import Emulated
    from tests.servers import Address

VARIANTS = [Variant(mode, version) for mode in ("raw", "decoded") for version in ("1.2.0", "2.1.0", "2.4.0")]
# Tests of the same gateway stay on one worker, which so starts each gateway once.
PARAMS = [
    pytest.param(each, id=str(each), marks=pytest.mark.xdist_group(f"rows-{each}")) for each in VARIANTS
]


@pytest.fixture(scope="package")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the broker lives."""
    return tmp_path_factory.mktemp("rows-broker")


@pytest.fixture(scope="package")
def broker(folder: Path) -> Iterator[Address]:
    """A broker that loses nothing on its way to a slow reader, and logs who subscribes to what."""
    logged = [f"log_type {each}" for each in ("error", "warning", "notice", "subscribe")]
    with Mosquitto(folder, "max_queued_messages 0", "max_inflight_messages 0", *logged) as mosquitto:
        yield mosquitto.address


@pytest.fixture(scope="package")
def broker_log(broker: Address, folder: Path) -> Path:
    """What the broker says of its clients."""
    assert broker.port
    return folder / "mosquitto.log"


@pytest.fixture(scope="package", params=PARAMS)
def variant(request: pytest.FixtureRequest) -> Variant:
    """A mode and a version."""
    chosen: Variant = request.param
    return chosen


@pytest.fixture(scope="package")
def gateway(broker: Address, variant: Variant) -> Iterator[Emulated]:
    """A gateway over the whole site."""
    with running(broker, variant, site) as emulated:
        yield emulated


@pytest.fixture(scope="package")
def unheeded(broker: Address, variant: Variant) -> Iterator[Emulated]:
    """A gateway whose devices all report and never answer."""
    with running(broker, variant, small_site, "--fault", "silent=1") as emulated:
        yield emulated


@pytest.fixture(scope="package")
def boundary(broker: Address, request: pytest.FixtureRequest) -> Iterator[Emulated]:
    """A gateway at a version that a test names, where it differs from the one before."""
    with running(broker, request.param, site) as emulated:
        yield emulated
