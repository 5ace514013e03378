"""Completion in bash at a terminal: labels of other users are inserted as single, harmless words."""

from __future__ import annotations

import os
import pty
import re
import select
import subprocess
import time
from typing import TYPE_CHECKING, Self

import pytest

from tests.cli.programs import TEST_TIMEOUT
from tests.cli.relay import Relay
from tests.external_tools import BASH, require

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.cli.shell import Shell


class Bash:
    """Interactive bash with the completion script, at a terminal."""

    def __init__(self, shell: Shell, folder: Path, relay: Relay) -> None:
        self._terminal, terminal = pty.openpty()
        self._process = subprocess.Popen(
            [require(BASH), "--norc", "--noprofile", "-i"],
            stdin=terminal,
            stdout=terminal,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            cwd=folder,
            env={
                **os.environ,
                **shell.variables,
                "PATH": f"{relay.folder}:{os.environ['PATH']}",
                "HISTFILE": "",
                "TERM": "dumb",
                "INPUTRC": "/dev/null",
            },
        )
        os.close(terminal)

    def __enter__(self) -> Self:
        os.write(self._terminal, b'eval "$(meshfleet completion bash)"; echo rea""dy\n')
        read_until(self._terminal, rb"ready\r?\n")
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._terminal)
        self._process.kill()
        self._process.wait(TEST_TIMEOUT)

    def complete(self, typed: str) -> list[str]:
        """Type something, and return the words that a command would get."""
        # Ctrl-A puts a printf in front, which shows the words.
        os.write(self._terminal, typed.encode() + b"\x01printf '<%s>' \x05; echo; echo do''ne\n")
        shown = read_until(self._terminal, rb"(<meshfleet>.*\r?\n)done\r?\n")
        return re.findall(r"<(.*?)>", shown.decode())


def read_until(terminal: int, pattern: bytes) -> bytes:
    """Read until a terminal shows the pattern, and return its last group."""
    shown, until = b"", time.monotonic() + TEST_TIMEOUT
    while not (found := re.search(pattern, shown)):
        assert select.select([terminal], [], [], max(0.0, until - time.monotonic()))[0], shown
        shown += os.read(terminal, 65536)
    return found[found.re.groups]


LABELS = [
    "7a$(touch pwned)",
    "7b`touch pwned`",
    "7c Head office",
    "7d/*",
    "7e'\"x",
    "7f!!x",
    "7g; touch pwned",
    "7h:a=b@c<d",
    "7ié 北",
    r"7j\x",
    "7k,{a,b}",
    "7l$HOME ~ #",
]
"""Labels, each with other first two characters than all others."""


@pytest.fixture(scope="module")
def relay(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Relay]:
    with Relay(tmp_path_factory.mktemp("relay") / "bin") as running:
        yield running


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Create a working directory with a file that `7d/*` would match."""
    directory = tmp_path / "work"
    (directory / "7d").mkdir(parents=True)
    (directory / "7d" / "file").touch()
    return directory


@pytest.fixture
def labels(admin: Shell) -> None:
    existing = {each["label"] for each in admin.json_lines("labels", "list")}
    for label in LABELS:
        if label not in existing:
            admin.text("labels", "add", label)


@pytest.mark.usefixtures("labels")
@pytest.mark.parametrize("quote", ["", '"', "'"], ids=["bare", "double", "single"])
def test_a_label_is_inserted_as_one_word_without_side_effects(
    admin: Shell, folder: Path, relay: Relay, quote: str
) -> None:
    with Bash(admin, folder, relay) as bash:
        for label in LABELS:
            # These cannot be written inside such quotes.
            is_impossible = (quote == '"' and "!" in label) or (quote == "'" and "'" in label)
            typed = f"{quote}{label[:2]}\t{quote if is_impossible else ''}"
            words = bash.complete(f"meshfleet devices list --label {typed}")
            assert words == ["meshfleet", "devices", "list", "--label", label[:2] if is_impossible else label]
    assert [each.name for each in folder.iterdir()] == ["7d"]


def test_a_partial_completion_can_be_completed_further(admin: Shell, folder: Path, relay: Relay) -> None:
    for label in ("Head office north", "Head office south: east"):
        admin.text("labels", "add", label)
    with Bash(admin, folder, relay) as bash:
        assert bash.complete("meshfleet devices list --label Hea\ts\t")[-1] == "Head office south: east"
        assert bash.complete("meshfleet devices list --label 'Hea\tn\t")[-1] == "Head office north"
        assert bash.complete("meshfleet ident\t") == ["meshfleet", "identifiers"]


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_are_offered_only_words_without_special_characters(admin: Shell, shell: str) -> None:
    for label in ("plain-label", "plain $(touch pwned)", "plain label", "plain*"):
        admin.text("labels", "add", label)
    variables = {
        "_MESHFLEET_COMPLETE": f"{shell}_complete",
        "COMP_WORDS": "meshfleet devices list --label plain",
        "COMP_CWORD": "plain" if shell == "fish" else "4",
    }
    offered = admin(**variables).stdout
    assert "plain-label" in offered
    assert offered.count("plain") == 2  # the type of the word, and the word
