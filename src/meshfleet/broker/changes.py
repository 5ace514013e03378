"""What is to be written down: for each row how it is to be in the end, or that it is to be gone.

Of several changes to one row only the last is written. A message that is acknowledged before the transaction
begins costs no more than a row that is not there.
"""

from __future__ import annotations

from typing import NamedTuple


class SessionRow(NamedTuple):
    """A session that outlives its connections."""

    account: str
    client_id: str
    left_at: int | None


class MessageRow(NamedTuple):
    """A message that waits for an acknowledgement."""

    topic: str
    payload: bytes
    retain: bool
    until: int | None


class RetainedRow(NamedTuple):
    """A retained message."""

    payload: bytes
    qos: int
    account: str


class Changes:
    """Rows by their keys; None where a row is to be gone."""

    __slots__ = ("messages", "received", "retained", "sessions", "subscriptions")

    def __init__(self) -> None:
        self.sessions: dict[int, SessionRow | None] = {}
        self.subscriptions: dict[tuple[int, str], int | None] = {}
        self.messages: dict[tuple[int, int], MessageRow | None] = {}
        self.received: dict[tuple[int, int], bool] = {}
        self.retained: dict[str, RetainedRow | None] = {}

    def __bool__(self) -> bool:
        return bool(self.messages or self.sessions or self.subscriptions or self.received or self.retained)

    def end_session(self, number: int) -> None:
        """A session is to be gone, with all that belongs to it."""
        self.sessions[number] = None
        for rows in (self.subscriptions, self.messages, self.received):
            for key in [key for key in rows if key[0] == number]:
                del rows[key]  # type: ignore[arg-type] # each by its own keys
