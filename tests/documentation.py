"""Pages of the documentation, and the shell commands in them.

The commands of a block that begins with ```sh tested run in a test. All other blocks are shown only, because
they need root, another machine, or a long time.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT: Final = Path(__file__).parent.parent

_TESTED_BLOCK: Final = re.compile(r"^```sh tested\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_BLOCK: Final = re.compile(r"^```(?:sh|sh tested)\n(.*?)^```$|^((?:    .+\n)+)", re.MULTILINE | re.DOTALL)
_INLINE: Final = re.compile(r"`(meshfleet [^`]+)`")
_CALL: Final = re.compile(
    r"(?:^|[|;&(]|\bexec \w+)[ ]*(?:sudo )?(?:\S*/)?meshfleet ([^|;&<>#)\n]*)", re.MULTILINE
)


def list_pages() -> list[Path]:
    """Return all pages for users. Decisions are about their time, and may name what no longer exists."""
    pages = [path for path in (ROOT / "docs").rglob("*.md") if path.parent.name != "decisions"]
    return [*(ROOT / f"{name}.md" for name in ("README", "CONTRIBUTING", "RELEASING")), *sorted(pages)]


def find_tested_blocks(page: Path) -> list[str]:
    """Return the blocks of commands that a test must run."""
    blocks: list[str] = _TESTED_BLOCK.findall(page.read_text())
    return blocks


def find_calls(page: Path) -> Iterator[list[str]]:
    """Yield the arguments of each call of `meshfleet` on a page, in blocks and in the text."""
    text = page.read_text()
    shown = [first or second for first, second in _BLOCK.findall(text)] + _INLINE.findall(text)
    for call in _CALL.findall("\n".join(shown).replace("\\\n", " ")):
        lexer = shlex.shlex(call, posix=True, punctuation_chars=False)
        lexer.whitespace_split, lexer.quotes = True, "\"'"
        yield list(lexer)
