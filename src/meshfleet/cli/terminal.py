"""What may go to a terminal."""

from __future__ import annotations


def to_printable(text: str) -> str:
    """Foreign text that cannot move the cursor, change colours or ring the bell."""
    return "".join(char if char.isprintable() else "\ufffd" for char in text)
