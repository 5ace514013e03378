"""`check`, which raises an error for failed responses."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from msgspec import UNSET, UnsetType

from meshfleet.client import Status, check
from meshfleet.errors import Declined
from meshfleet.protocol.responses import Response
from tests.row_tables import each_row

NOW = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.rule("response-7")
@each_row("message", [UNSET, "", "ok", "all is well", "timeout", "status 0"])
def test_only_the_status_decides_whatever_the_error_message_says(message: str | UnsetType) -> None:
    response = Response(time=NOW, status=0, error_message=message)
    assert check(response) is response
    with pytest.raises(Declined) as raised:
        check(Response(time=NOW, status=Status.BUSY, error_message=message))
    assert raised.value.status == Status.BUSY


def test_an_unknown_status_is_reported_by_its_number() -> None:
    with pytest.raises(Declined, match="77"):
        check(Response(time=NOW, status=77))
