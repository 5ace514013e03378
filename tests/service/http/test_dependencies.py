"""Two services in one process share only their routes."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from tests.databases import fresh_database
from tests.service.live.live_service import LiveService, run_live_service

if TYPE_CHECKING:
    from collections.abc import Iterator

LABELS = "/api/v1/labels"
NOT_LOGGED_IN = 4401


@pytest.fixture
def services(request: pytest.FixtureRequest) -> Iterator[tuple[LiveService, LiveService]]:
    with (
        closing(fresh_database(request, "sqlite")) as first_database,
        closing(fresh_database(request, "sqlite")) as second_database,
        run_live_service(first_database) as first,
        run_live_service(second_database) as second,
    ):
        yield first, second


def test_each_service_has_its_own_data(services: tuple[LiveService, LiveService]) -> None:
    for number, service in enumerate(services):
        assert service.operator.post(LABELS, json={"label": f"floor {number}"}).status_code == 200
    for number, service in enumerate(services):
        names = [each["label"] for each in service.viewer.get(LABELS).json()["items"]]
        assert names == [f"floor {number}"]


def test_an_api_key_of_one_service_is_refused_by_the_other(services: tuple[LiveService, LiveService]) -> None:
    first, second = services
    client = second.client(first.key)
    assert client.get(LABELS).status_code == 401
    client.close()
    with second.open_authenticated(first.key) as websocket:
        assert websocket.read_close()[0] == NOT_LOGGED_IN


def test_a_subscriber_of_one_service_receives_no_events_of_the_other(
    services: tuple[LiveService, LiveService],
) -> None:
    first, second = services
    with first.open_authenticated() as websocket, second.open_authenticated() as other_websocket:
        websocket.subscribe(Types=["device"])
        other_websocket.subscribe(Types=["device"])
        for service, name in ((second, "of the second"), (first, "of the first")):
            device = service.new_device()
            service.operator.put(f"/api/v1/devices/{device}/friendly-name", json={"name": name})
        assert websocket.next()["data"]["friendlyName"] == "of the first"
        assert other_websocket.next()["data"]["friendlyName"] == "of the second"
