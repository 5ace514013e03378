"""Lines that show a user what a backup will contain, before it is written."""

from __future__ import annotations

from typing import TYPE_CHECKING

from meshfleet.service.backup.postgresql_backup import is_partition
from meshfleet.service.byte_format import format_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from meshfleet.service.backup.archive import TableDescription
    from meshfleet.service.backup.sqlite_backup import StagedFiles


def describe_source(place: Path | str, database: str, schema: str, *, is_running: bool) -> str:
    """Return a line with the data that is backed up, and whether a service uses it."""
    service = "while the service runs" if is_running else "while the service is stopped"
    return f"Backing up {place} ({database}, schema {schema}) {service}"


def describe_files(staged: StagedFiles, *, with_samples: bool) -> str:
    """Return a line with the sizes of the files of a backup."""
    samples, images = staged.samples, staged.images
    parts = [
        f"database {format_bytes(_sum_sizes([staged.database]))}",
        f"samples {format_bytes(_sum_sizes(samples))} in {len(samples)} files"
        if with_samples
        else "without samples",
        f"firmware {len(images)} images, {format_bytes(_sum_sizes(images))}",
    ]
    return f"  {' · '.join(parts)}"


def describe_tables(tables: Sequence[TableDescription], *, with_samples: bool) -> str:
    """Return a line with the number of tables of a backup. Their sizes are not known in advance."""
    count = sum(is_partition(table.name) for table in tables)
    samples = f"samples in {count} tables of one day each" if with_samples else "without samples"
    return f"  {len(tables) - count} tables · {samples}"


def _sum_sizes(paths: Iterable[Path]) -> int:
    return sum(path.stat().st_size for path in paths)
