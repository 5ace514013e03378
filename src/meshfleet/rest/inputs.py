"""The rules for what people and programs type into the REST interface."""

from __future__ import annotations

import re
import unicodedata
from typing import Final

from meshfleet.errors.protocol import MalformedPayload, MalformedText

MIN_RESULTS: Final = 1
MAX_RESULTS: Final = 1000
DEFAULT_RESULTS: Final = 100
"""`MaxResults` on lists (rest-23)."""


def parse_max_results(text: str) -> int:
    """Read `MaxResults`: how many items a page may hold (rest-23)."""
    if not re.fullmatch(r"[0-9]{1,4}", text) or not MIN_RESULTS <= int(text) <= MAX_RESULTS:
        raise MalformedPayload("MaxResults", f"is not a number from {MIN_RESULTS} to {MAX_RESULTS}")
    return int(text)


def parse_retry_after(text: str) -> int | None:
    """Read how many seconds to wait; None: it says something else, such as a date."""
    return int(text) if re.fullmatch(r"[0-9]{1,9}", text) else None


_BEARER = re.compile(r"bearer ([A-Za-z0-9\-._~+/]+=*)", re.IGNORECASE | re.ASCII)


def parse_bearer(header: str) -> str | None:
    """Take the token out of an `Authorization` header; None: there is none (auth-5)."""
    found = _BEARER.fullmatch(header)
    return found[1] if found else None


_BIDIRECTIONAL: Final = frozenset(
    {"\u061c", "\u200e", "\u200f", *map(chr, range(0x202A, 0x202F)), *map(chr, range(0x2066, 0x206A))}
)
"""Marks, embeddings, overrides and isolates that change the order in which the text around them is shown."""


def find_bidirectional_control(text: str) -> str | None:
    """Name the first bidirectional control character in a text: with one, a text can look like another.

    Letters of scripts that are written from right to left need none.
    """
    found = next((char for char in text if char in _BIDIRECTIONAL), None)
    if found is None:
        return None
    return f"has the bidirectional control character U+{ord(found):04X} ({unicodedata.name(found)})"


def parse_friendly_name(text: str, field: str = "name") -> str:
    """Read the new name of a device: 1 to 128 characters after trimming (rest-44)."""
    return _parse_new_line(text, field, most=128)


def parse_name_part(text: str, field: str = "name") -> str:
    """Read a part of a name to look for; spaces count, also at its ends."""
    return _check_line(text, field, most=128)


def parse_label(text: str, field: str = "label") -> str:
    """Read a label: 1 to 64 characters after trimming, none of them a control, in NFC (rest-66, rest-67)."""
    label = _parse_line(unicodedata.normalize("NFC", text), field, most=64)
    if label in {".", ".."}:
        raise MalformedText(field, f"{label!r} means something else in a path")
    return label


def parse_new_label(text: str, field: str = "label") -> str:
    """Read a label that a device is to have; those that are there may still have what is refused here."""
    label = parse_label(text, field)
    _refuse_bidirectional(label, field)
    return label


MIN_PASSWORD: Final = 10
MAX_PASSWORD: Final = 1024
"""Characters. Longer ones would only keep the machine busy."""

_USERNAME = re.compile(r"[a-z0-9][a-z0-9._@+-]{0,63}")
_GATEWAY = re.compile(r"[0-9a-f]{12}")


def parse_username(text: str, field: str = "username") -> str:
    """Read the name of a person: read in any case, kept in lower case."""
    name = text.lower()
    if not _USERNAME.fullmatch(name):
        raise MalformedText(field, "is not 1 to 64 letters, digits and . _ @ + -, the first no sign")
    if name == "apikey" or _GATEWAY.fullmatch(name):
        raise MalformedText(field, "is how programs and gateways call themselves on MQTT")
    return name


def parse_password(text: str, field: str = "password") -> str:
    """Read a new password of a person (auth-22)."""
    if not MIN_PASSWORD <= len(text) <= MAX_PASSWORD:
        raise MalformedText(field, f"must have {MIN_PASSWORD} to {MAX_PASSWORD} characters")
    return text


def parse_key_name(text: str, field: str = "name") -> str:
    """Read the name of a new API key."""
    return _parse_new_line(text, field, most=64)


def _parse_new_line(text: str, field: str, *, most: int) -> str:
    line = _parse_line(text, field, most=most)
    _refuse_bidirectional(line, field)
    return line


def _refuse_bidirectional(text: str, field: str) -> None:
    reason = find_bidirectional_control(text)
    if reason is not None:
        raise MalformedText(field, reason)


def _parse_line(text: str, field: str, *, most: int) -> str:
    return _check_line(text.strip(), field, most=most)


def _check_line(line: str, field: str, *, most: int) -> str:
    if not 1 <= len(line) <= most:
        raise MalformedText(field, f"has {len(line)} characters; 1 to {most} are allowed")
    if any(unicodedata.category(char) in {"Cc", "Cs"} for char in line):
        raise MalformedText(field, "has control characters")
    return line
