"""The connection that reports come on: each is acknowledged by itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from meshfleet.link import Batch, Link
from meshfleet.link.inbox import Inbox

if TYPE_CHECKING:
    from meshfleet.link import Address, Options, Publish
    from meshfleet.link.inbox import Acks


class _OneByOne(Inbox):
    """Makes a batch of every message, so that what was not looked at comes again, and nothing else."""

    __slots__ = ()

    def put(self, messages: list[Publish], size: int, acks: Acks) -> None:
        """Add what one read brought."""
        share, rest = divmod(size, len(messages))
        for place, message in enumerate(messages):
            batch = Batch(acks)
            batch.messages.append(message)
            batch.size = share + (rest if place == 0 else 0)
            self._batches.append(batch)
        self.size += size


class ReportLine(Link):
    """A link whose batches hold one message each."""

    __slots__ = ()

    def __init__(self, address: Address, client_id: str, *, clean: bool, options: Options) -> None:
        super().__init__(address, client_id, clean=clean, options=options)
        self._inbox = _OneByOne()
