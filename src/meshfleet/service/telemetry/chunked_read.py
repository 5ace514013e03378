"""Long reads from the sample store, block by block: others want its threads, too."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from msgspec.structs import replace

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from meshfleet.db.samples.sample import SampleIdentity, SampleQuery, SampleStore, StoredSample

Result = TypeVar("Result")


class ChunkSizes(NamedTuple):
    """How many samples are read at once; between two blocks others have their turn."""

    csv_lines: int = 5_000
    """Of a sheet: what a client has not taken waits in memory."""
    series_samples: int = 50_000
    """Of a series."""
    link_minutes: int = 20_000
    """Of links."""


DEFAULT_CHUNK_SIZES: Final = ChunkSizes()


async def read_in_chunks(
    store: SampleStore, query: SampleQuery, consume: Callable[[list[StoredSample]], Result], *, size: int
) -> AsyncIterator[Result]:
    """What a function makes of all samples, in blocks of so many; it runs in a thread."""

    def take(samples: Iterator[StoredSample]) -> tuple[Result, SampleIdentity | None]:
        block = list(islice(samples, size))
        return consume(block), block[-1].identity if len(block) == size else None

    while True:
        result, end = await store.read(query, take)
        yield result
        if end is None:
            return
        query = replace(query, after=end)
