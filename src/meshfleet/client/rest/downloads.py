"""Files that come from a service: whole and as they should be, or not at all."""

from __future__ import annotations

import asyncio
import hashlib
import os
import secrets
from typing import TYPE_CHECKING, BinaryIO

from meshfleet.errors import ImageDamaged

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path


async def keep(pieces: AsyncIterator[bytes], path: Path, *, sha256: str) -> None:
    """Write pieces into a file, which appears when all have come and have this hash; else ImageDamaged."""
    begun = path.with_name(f".{path.name[:50]}.{secrets.token_hex(4)}")
    file = await asyncio.to_thread(begun.open, "xb")
    try:
        with file:
            await _write(pieces, file, sha256)
        await asyncio.to_thread(os.replace, begun, path)
    except BaseException:
        begun.unlink()  # at once: nothing may come between
        raise


async def _write(pieces: AsyncIterator[bytes], file: BinaryIO, sha256: str) -> None:
    digest = hashlib.sha256()
    async for piece in pieces:
        digest.update(piece)
        await asyncio.to_thread(file.write, piece)
    if digest.hexdigest() != sha256:
        raise ImageDamaged("what came is not the image: its hash is another one")
    file.flush()
    await asyncio.to_thread(os.fsync, file.fileno())
