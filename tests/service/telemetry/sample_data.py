"""Samples for tests, and requests to a running service."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec.structs import astuple

from meshfleet.db.samples.sample import NO_SEQ, SampleExtras, SampleKind, StoredSample
from meshfleet.db.tables import foreign_name
from meshfleet.protocol.identifiers.numbers import identifier_to_int
from meshfleet.protocol.ids import IdentifierName

if TYPE_CHECKING:
    import httpx
    from sqlalchemy import Connection

    from tests.service.http.running_service import RunningService

AT = 1_700_000_000_000
"""2023-11-14T22:13:20.000Z"""

MINUTE = 60_000
_MAX_PAGES = 1000
"""More pages than any list in these tests has."""

GATEWAY = 0xD0CF5E000001


def build_sample(  # noqa: PLR0913 # keyword-only
    time: int = AT,
    number: float | None = None,
    *,
    kind: SampleKind = SampleKind.MEASUREMENT,
    identifier: int = 0x8800,
    seq: int = NO_SEQ,
    raw: bytes | None = None,
    more: SampleExtras | None = None,
) -> StoredSample:
    """Build a sample of any device."""
    return StoredSample(time, kind, identifier, seq, GATEWAY, number, raw, more)


def store_samples(service: RunningService, device: str, *samples: StoredSample) -> None:
    """Store samples of a device."""
    rows: Any = {int(device.removeprefix("bmac-"), 16): [astuple(sample) for sample in samples]}
    number = service.database.write_now(service.samples.write, rows, service.clock())
    service.samples.publish_committed(number, rows)


def learn_name(service: RunningService, name: str) -> int:
    """Store a name that is not in the catalogue. Return its number."""
    number = identifier_to_int(IdentifierName(name))

    def insert_name(connection: Connection) -> None:
        connection.execute(foreign_name.insert().values(number=number, name=name))

    service.database.write_now(insert_name)
    return number


def get_json(service: RunningService, path: str, **query: Any) -> Any:
    """Return the response to a viewer's GET request as JSON."""
    response = service.viewer.get(path, params=query)
    assert response.status_code == 200, response.text
    return response.json()


def get_all_pages(service: RunningService, path: str, **query: Any) -> list[dict[str, Any]]:
    """Return the items of all pages."""
    items: list[dict[str, Any]] = []
    token: dict[str, str] = {}
    for _ in range(_MAX_PAGES):
        page = get_json(service, path, **query, **token)
        items += page["items"]
        if page["nextToken"] is None:
            return items
        token = {"NextToken": page["nextToken"]}
    raise AssertionError("the list does not end")


def list_faults(answer: httpx.Response) -> list[str]:
    """Return the fields that a 400 response names."""
    assert answer.status_code == 400, answer.text
    assert answer.headers["Content-Type"] == "application/problem+json"
    return [error["field"] for error in answer.json()["errors"]]
