"""The folder of segments: how it is made, and what becomes of files in it that the database does not know."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from meshfleet.db.samples import segments

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from meshfleet.db.samples.segments import Segment

_log = logging.getLogger(__name__)

_ASIDE: Final = "unknown"


def prepare(folder: Path) -> None:
    """Make the folder, and let it be on the disk before anything is in it."""
    folder.mkdir(mode=0o700, exist_ok=True)
    segments.sync(folder.parent)


def clear(folder: Path, known: Iterable[Segment], highest: int) -> int:
    """Remove what is of no use; gives the first number that no file has, or ever had.

    `highest` is the highest number that the database ever knew. A file with a number up to that one was
    replaced by others. One above it may be what a crash has left, but also the only copy of its samples,
    where an older database was put back: it is put aside.
    """
    for place in folder.glob("*.unfinished"):
        place.unlink()
    needed = {each.number for each in known}
    unknown = [place for place in _segments(folder) if _number(place) not in needed]
    above = [place for place in unknown if _number(place) > highest]
    for place in unknown:
        if _number(place) <= highest:
            place.unlink()
    _put_aside(folder / _ASIDE, above)
    return max([highest, *needed, *map(_number, _segments(folder / _ASIDE))]) + 1


def _put_aside(aside: Path, places: list[Path]) -> None:
    if not places:
        return
    aside.mkdir(mode=0o700, exist_ok=True)
    for place in places:
        place.rename(_free(aside / place.name))
    segments.sync(aside)
    segments.sync(aside.parent)
    _log.warning(
        "%d files with samples are unknown to the database, and were moved to %s. If an older copy of the"
        " database was put back: stop the service, put back the newer one, and move them to where they were."
        " If the service, or its machine, just ended in the middle of its work: their samples are stored"
        " elsewhere, and they may be deleted.",
        len(places),
        aside,
    )


def _free(place: Path) -> Path:
    """A name that nothing has: none of them may be the only copy that another one replaces."""
    copies = 0
    free = place
    while free.exists():
        copies += 1
        free = place.with_name(f"{place.stem}.{copies}{place.suffix}")
    return free


def _segments(folder: Path) -> list[Path]:
    """Files with names that are ours."""
    return list(folder.glob("[0-9]" * 8 + "*.samples"))


def _number(place: Path) -> int:
    return int(place.name.partition(".")[0])
