"""Reads many samples in chunks, so that other readers can use the sample store's threads in between."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from msgspec.structs import replace

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from meshfleet.db.samples.sample import SampleIdentity, SampleQuery, SampleStore, StoredSample

Result = TypeVar("Result")


class ChunkSizes(NamedTuple):
    """Maximum numbers of samples per chunk; other readers of the sample store run between two chunks."""

    csv_lines: int = 5_000
    """Samples per chunk of a CSV export: few, as they stay in memory until the HTTP client received them."""
    series_samples: int = 50_000
    """Samples per chunk when a series is aggregated."""
    link_minutes: int = 20_000
    """Minute roll-ups per chunk when radio links are aggregated."""


DEFAULT_CHUNK_SIZES: Final = ChunkSizes()


async def read_in_chunks(
    store: SampleStore, query: SampleQuery, consume: Callable[[list[StoredSample]], Result], *, size: int
) -> AsyncIterator[Result]:
    """Read the samples of a query in chunks of at most `size`, and yield `consume(chunk)` for each chunk.

    `consume` runs in a worker thread.
    """

    def consume_chunk(samples: Iterator[StoredSample]) -> tuple[Result, SampleIdentity | None]:
        chunk = list(islice(samples, size))
        return consume(chunk), chunk[-1].identity if len(chunk) == size else None

    while True:
        result, last_identity = await store.read(query, consume_chunk)
        yield result
        if last_identity is None:
            return
        query = replace(query, after=last_identity)
