"""What ingest counts."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from meshfleet.service.ingest.draft import Draft


class Counts:
    """What ingest counts."""

    def __init__(self) -> None:
        self.reports: dict[str, int] = {}
        self.rejects: dict[str, int] = {}
        self.samples = 0
        self.batches = 0

    def count(self, draft: Draft) -> None:
        """A draft is committed."""
        self.batches += 1
        self.samples += sum(map(len, draft.rows.values()))
        for kind, count in draft.counts.items():
            self.reports[kind] = self.reports.get(kind, 0) + count
        for each in draft.rejects:
            self.rejects[each.code] = self.rejects.get(each.code, 0) + 1
