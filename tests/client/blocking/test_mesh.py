"""Gateways over a broker, for programs without an event loop."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from meshfleet.client import check
from meshfleet.client.blocking import Mesh
from meshfleet.errors import BrokerUnreachable
from meshfleet.testing import EmulatedGateway, emulated_gateway
from tests.servers import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.xdist_group("client/blocking/test_mesh.py")


@pytest.fixture(scope="module")
def gateway() -> Iterator[EmulatedGateway]:
    with emulated_gateway(devices=2, speed=60.0) as running:
        yield running


def test_requests_are_answered_and_reports_are_iterated(gateway: EmulatedGateway) -> None:
    with Mesh(gateway.broker) as mesh:
        assert str(mesh.apiversion(gateway.mac).version) == "2.4.0"
        assert check(mesh.read(gateway.mac, gateway.mac, "8000")).value
        for report in mesh.reports(gateway=gateway.mac):
            assert report.gateway == gateway.mac
            break
        assert (mesh.rejected, mesh.pending) == (0, 0)
    assert not [each for each in threading.enumerate() if each.name == "Mesh"]


def test_a_broker_that_is_not_there_leaves_nothing_behind() -> None:
    mesh = Mesh(f"mqtt://127.0.0.1:{free_port()}")
    with pytest.raises(BrokerUnreachable):
        mesh.__enter__()
    assert not [each for each in threading.enumerate() if each.name == "Mesh"]
