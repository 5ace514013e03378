"""Replaces a file in one step: other programs, also after a crash, find either the old or the new content."""

from __future__ import annotations

import os
from pathlib import Path
from tempfile import mkstemp


def replace_file(
    path: Path, content: bytes, *, mode: int = 0o600, owner: os.stat_result | None = None
) -> None:
    """Write a file with these permissions, and replace a file that exists. Raise `OSError` if that fails.

    The file belongs to the user of this process. Root gives it to the user and group of `owner`.
    """
    descriptor, name = mkstemp(prefix=f".{path.name}.", dir=path.absolute().parent)
    temporary = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            if os.name != "nt":  # Windows has neither such permissions nor owners
                os.fchmod(descriptor, mode)
                if owner is not None and os.geteuid() == 0:
                    os.fchown(descriptor, owner.st_uid, owner.st_gid)
            file.write(content)
            file.flush()
            os.fsync(descriptor)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
