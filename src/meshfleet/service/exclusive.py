"""One service that takes reports per database: a second one is refused before it listens or changes anything.

A SQLite database belongs to a data folder, and that is locked for one service (`folder.held`). On PostgreSQL
the service holds an advisory lock on a connection of its own, which the server drops when that connection
ends. The whole check is here, and nothing else relies on it: a service that lost its place is kept from
writing by the token of `broker_owner`.
"""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Final

from meshfleet.db import explain_driver_errors
from meshfleet.errors import UnusableDatabase

if TYPE_CHECKING:
    from collections.abc import Iterator

    from meshfleet.db import Database
    from meshfleet.settings import Settings

_LOCK: Final = 0x6D717474
"""Any number, as long as no other lock on the database has it."""


@contextmanager
def hold_service_lock(database: Database, settings: Settings) -> Iterator[None]:
    """Be the only service that takes reports into this database while the block runs, or raise.

    A service without any way in for reports shares its database with others.
    """
    if not takes_reports(settings):
        yield
        return
    with ExitStack() as stack:
        with explain_driver_errors():
            is_alone = stack.enter_context(database.only_one(_LOCK))
        if not is_alone:
            raise UnusableDatabase(
                "another Meshfleet takes reports into this database, with its own broker or from another; "
                "stop that one, give this one a database of its own, or let it take no reports: "
                "--broker embedded --mqtt off"
            )
        yield


def takes_reports(settings: Settings) -> bool:
    """Tell whether gateways or another broker can bring reports to a service with these settings."""
    return any((settings.outside, settings.mqtt, settings.mqtt_tls, settings.mqtt_ws))
