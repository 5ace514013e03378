"""Long reads from the sample store, block by block: others want its threads, too."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from msgspec.structs import replace

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from meshfleet.db.samples.sample import Identity, Sample, SampleStore, Wanted

Result = TypeVar("Result")


class Blocks(NamedTuple):
    """How many samples are read at once; between two blocks others have their turn."""

    lines: int = 5_000
    """Of a sheet: what a client has not taken waits in memory."""
    numbers: int = 50_000
    """Of a series."""
    minutes: int = 20_000
    """Of links."""


BLOCKS: Final = Blocks()


async def in_blocks(
    store: SampleStore, wanted: Wanted, use: Callable[[list[Sample]], Result], *, size: int
) -> AsyncIterator[Result]:
    """What a function makes of all samples, in blocks of so many; it runs in a thread."""

    def take(samples: Iterator[Sample]) -> tuple[Result, Identity | None]:
        block = list(islice(samples, size))
        return use(block), block[-1].identity if len(block) == size else None

    while True:
        result, end = await store.read(wanted, take)
        yield result
        if end is None:
            return
        wanted = replace(wanted, after=end)
