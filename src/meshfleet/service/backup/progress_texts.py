"""Lines that tell a user what a backup contains, before it is written."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from meshfleet.service.backup.postgresql_backup import is_partition

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from meshfleet.service.backup.archive import TableDescription
    from meshfleet.service.backup.sqlite_backup import StagedFiles

_UNIT_STEP: Final = 1000


def describe_source(place: Path | str, database: str, schema: str, *, is_running: bool) -> str:
    """Return a line with the data that is backed up, and whether a service uses it."""
    service = "while the service runs" if is_running else "while the service is stopped"
    return f"Backing up {place} ({database}, schema {schema}) {service}"


def describe_files(staged: StagedFiles, *, with_samples: bool) -> str:
    """Return a line with the sizes of the files of a backup."""
    samples, images = staged.samples, staged.images
    parts = [
        f"database {format_size(_sum_sizes([staged.database]))}",
        f"samples {format_size(_sum_sizes(samples))} in {len(samples)} files"
        if with_samples
        else "without samples",
        f"firmware {len(images)} images, {format_size(_sum_sizes(images))}",
    ]
    return f"  {' · '.join(parts)}"


def describe_tables(tables: Sequence[TableDescription], *, with_samples: bool) -> str:
    """Return a line with the numbers of tables of a backup. Their sizes are not known before."""
    count = sum(is_partition(table.name) for table in tables)
    samples = f"samples in {count} tables of one day each" if with_samples else "without samples"
    return f"  {len(tables) - count} tables · {samples}"


def format_size(size: float) -> str:
    """Return a number of bytes with a unit, such as 2.0 GB."""
    for unit in ("bytes", "kB", "MB"):
        if size < _UNIT_STEP:
            return f"{size:.0f} {unit}"
        size /= _UNIT_STEP
    return f"{size:.1f} GB"


def _sum_sizes(paths: Iterable[Path]) -> int:
    return sum(path.stat().st_size for path in paths)
