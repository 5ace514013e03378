"""Samples for tests, and how they get into the store of a running service."""

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
_PAGES = 1000
"""More than any list here has."""

GATEWAY = 0xD0CF5E000001


def build_sample(  # noqa: PLR0913 # by name
    time: int = AT,
    number: float | None = None,
    *,
    kind: SampleKind = SampleKind.MEASUREMENT,
    identifier: int = 0x8800,
    seq: int = NO_SEQ,
    raw: bytes | None = None,
    more: SampleExtras | None = None,
) -> StoredSample:
    """A sample of some device."""
    return StoredSample(time, kind, identifier, seq, GATEWAY, number, raw, more)


def store_samples(service: RunningService, device: str, *samples: StoredSample) -> None:
    """Let a device have these samples."""
    rows: Any = {int(device.removeprefix("bmac-"), 16): [astuple(each) for each in samples]}
    number = service.database.write_now(service.samples.write, rows, service.clock())
    service.samples.publish_committed(number, rows)


def learn_name(service: RunningService, name: str) -> int:
    """The number of a name that the catalogue does not know."""
    number = identifier_to_int(IdentifierName(name))

    def learn(connection: Connection) -> None:
        connection.execute(foreign_name.insert().values(number=number, name=name))

    service.database.write_now(learn)
    return number


def get_json(service: RunningService, path: str, **query: Any) -> Any:
    """What a viewer is answered."""
    answer = service.viewer.get(path, params=query)
    assert answer.status_code == 200, answer.text
    return answer.json()


def get_all_pages(service: RunningService, path: str, **query: Any) -> list[dict[str, Any]]:
    """The items of all pages."""
    items: list[dict[str, Any]] = []
    token: dict[str, str] = {}
    for _ in range(_PAGES):
        page = get_json(service, path, **query, **token)
        items += page["items"]
        if page["nextToken"] is None:
            return items
        token = {"NextToken": page["nextToken"]}
    raise AssertionError("this list has no end")


def list_faults(answer: httpx.Response) -> list[str]:
    """The fields that a refusal names."""
    assert answer.status_code == 400, answer.text
    assert answer.headers["Content-Type"] == "application/problem+json"
    return [each["field"] for each in answer.json()["errors"]]
