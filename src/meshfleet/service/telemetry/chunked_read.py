"""Long reads from the sample store, chunk by chunk, so that its threads are shared."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from msgspec.structs import replace

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from meshfleet.db.samples.sample import SampleIdentity, SampleQuery, SampleStore, StoredSample

Result = TypeVar("Result")


class ChunkSizes(NamedTuple):
    """Number of samples read at once; other readers get a turn between two chunks."""

    csv_lines: int = 5_000
    """Lines of a CSV export: a chunk that the client has not received is in memory."""
    series_samples: int = 50_000
    """Samples of a series."""
    link_minutes: int = 20_000
    """Minutes of links."""


DEFAULT_CHUNK_SIZES: Final = ChunkSizes()


async def read_in_chunks(
    store: SampleStore, query: SampleQuery, consume: Callable[[list[StoredSample]], Result], *, size: int
) -> AsyncIterator[Result]:
    """Yield the results of `consume`, called in a worker thread with chunks of at most `size` samples."""

    def consume_chunk(samples: Iterator[StoredSample]) -> tuple[Result, SampleIdentity | None]:
        chunk = list(islice(samples, size))
        return consume(chunk), chunk[-1].identity if len(chunk) == size else None

    while True:
        result, last_identity = await store.read(query, consume_chunk)
        yield result
        if last_identity is None:
            return
        query = replace(query, after=last_identity)
