"""What ingest counts."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from meshfleet.service.ingest.draft import Draft


class Counts:
    """What ingest counts."""

    def __init__(self) -> None:
        self.reports: Counter[str] = Counter()
        self.rejects: Counter[str] = Counter()
        self.samples = 0
        self.strays = 0
        self.batches = 0

    def count(self, draft: Draft) -> None:
        """A draft is committed."""
        self.batches += 1
        self.strays += draft.strays
        self.samples += sum(map(len, draft.rows.values()))
        self.reports.update(draft.seen)
        self.rejects.update(each.code for each in draft.rejects)
