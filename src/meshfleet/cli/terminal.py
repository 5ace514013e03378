"""Makes strings safe to print on a terminal."""

from __future__ import annotations


def to_printable(text: str) -> str:
    """Replace unprintable characters, so that the text cannot send control codes to the terminal."""
    return "".join(char if char.isprintable() else "\ufffd" for char in text)
