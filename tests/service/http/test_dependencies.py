"""Two services in one process: they have their routes in common, and nothing else."""

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
def pair(request: pytest.FixtureRequest) -> Iterator[tuple[LiveService, LiveService]]:
    with (
        closing(fresh_database(request, "sqlite")) as one,
        closing(fresh_database(request, "sqlite")) as other,
        run_live_service(one) as first,
        run_live_service(other) as second,
    ):
        yield first, second


def test_each_has_what_it_was_told(pair: tuple[LiveService, LiveService]) -> None:
    for number, service in enumerate(pair):
        assert service.operator.post(LABELS, json={"label": f"floor {number}"}).status_code == 200
    for number, service in enumerate(pair):
        names = [each["label"] for each in service.viewer.get(LABELS).json()["items"]]
        assert names == [f"floor {number}"]


def test_nobody_of_one_is_known_to_the_other(pair: tuple[LiveService, LiveService]) -> None:
    first, second = pair
    stranger = second.client(first.key)
    assert stranger.get(LABELS).status_code == 401
    stranger.close()
    with second.open_authenticated(first.key) as talk:
        assert talk.read_close()[0] == NOT_LOGGED_IN


def test_who_listens_to_one_hears_nothing_of_the_other(pair: tuple[LiveService, LiveService]) -> None:
    first, second = pair
    with first.open_authenticated() as talk, second.open_authenticated() as other:
        talk.subscribe(Types=["device"])
        other.subscribe(Types=["device"])
        for service, name in ((second, "of the second"), (first, "of the first")):
            device = service.new_device()
            service.operator.put(f"/api/v1/devices/{device}/friendly-name", json={"name": name})
        assert talk.next()["data"]["friendlyName"] == "of the first"
        assert other.next()["data"]["friendlyName"] == "of the second"
