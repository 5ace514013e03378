"""Validation of the inputs of the REST API."""

from __future__ import annotations

import re
import unicodedata
from typing import Final

from meshfleet.errors.protocol import MalformedPayload, MalformedText

MIN_RESULTS: Final = 1
MAX_RESULTS: Final = 1000
DEFAULT_RESULTS: Final = 100
"""Range and default of `MaxResults` in lists (rest-23)."""


def parse_max_results(text: str) -> int:
    """Parse `MaxResults`, the maximum number of items on a page (rest-23)."""
    if not re.fullmatch(r"[0-9]{1,4}", text) or not MIN_RESULTS <= int(text) <= MAX_RESULTS:
        raise MalformedPayload("MaxResults", f"must be a number from {MIN_RESULTS} to {MAX_RESULTS}")
    return int(text)


def parse_retry_after(text: str) -> int | None:
    """Parse the seconds of a `Retry-After` header; None if it has another form, such as a date."""
    return int(text) if re.fullmatch(r"[0-9]{1,9}", text) else None


_BEARER = re.compile(r"bearer ([A-Za-z0-9\-._~+/]+=*)", re.IGNORECASE | re.ASCII)


def parse_bearer(header: str) -> str | None:
    """Extract the token of an `Authorization` header; None if it has another form (auth-5)."""
    match = _BEARER.fullmatch(header)
    return match[1] if match else None


_BIDIRECTIONAL: Final = frozenset(
    {"\u061c", "\u200e", "\u200f", *map(chr, range(0x202A, 0x202F)), *map(chr, range(0x2066, 0x206A))}
)
"""Marks, embeddings, overrides and isolates, which change the order in which text is displayed."""


def find_bidirectional_control(text: str) -> str | None:
    """Describe the first bidirectional control character in a text; None if there is none.

    With such a character, a text can look like another one. Scripts that are written from right to left do
    not need such characters.
    """
    found = next((char for char in text if char in _BIDIRECTIONAL), None)
    if found is None:
        return None
    return f"has the bidirectional control character U+{ord(found):04X} ({unicodedata.name(found)})"


def parse_friendly_name(text: str, field: str = "name") -> str:
    """Parse the new name of a device: 1 to 128 characters after trimming (rest-44)."""
    return _parse_new_line(text, field, max_length=128)


def parse_name_part(text: str, field: str = "name") -> str:
    """Parse a part of a name to search for. Spaces count, even at its ends."""
    return _check_line(text, field, max_length=128)


def parse_label(text: str, field: str = "label") -> str:
    """Parse a label: 1 to 64 characters after trimming, no control characters, in NFC (rest-66, rest-67)."""
    label = _parse_line(unicodedata.normalize("NFC", text), field, max_length=64)
    if label in {".", ".."}:
        raise MalformedText(field, f"{label!r} cannot be part of a path")
    return label


def parse_new_label(text: str, field: str = "label") -> str:
    """Parse a label to attach. Existing labels may still contain characters that are refused here."""
    label = parse_label(text, field)
    _refuse_bidirectional(label, field)
    return label


MIN_PASSWORD: Final = 10
MAX_PASSWORD: Final = 1024
"""Maximum characters of a password. Hashing longer ones would only waste time."""

_USERNAME = re.compile(r"[a-z0-9][a-z0-9._@+-]{0,63}")
_GATEWAY = re.compile(r"[0-9a-f]{12}")


def parse_username(text: str, field: str = "username") -> str:
    """Parse a user name. Upper case is accepted and converted to lower case."""
    name = text.lower()
    if not _USERNAME.fullmatch(name):
        raise MalformedText(
            field, "must have 1 to 64 letters, digits and . _ @ + -, and begin with a letter or digit"
        )
    if name == "apikey" or _GATEWAY.fullmatch(name):
        raise MalformedText(field, "is reserved: API keys and gateways use such user names on MQTT")
    return name


def parse_password(text: str, field: str = "password") -> str:
    """Parse a new password of a user (auth-22)."""
    if not MIN_PASSWORD <= len(text) <= MAX_PASSWORD:
        raise MalformedText(field, f"must have {MIN_PASSWORD} to {MAX_PASSWORD} characters")
    return text


def parse_key_name(text: str, field: str = "name") -> str:
    """Parse the name of a new API key."""
    return _parse_new_line(text, field, max_length=64)


def _parse_new_line(text: str, field: str, *, max_length: int) -> str:
    line = _parse_line(text, field, max_length=max_length)
    _refuse_bidirectional(line, field)
    return line


def _refuse_bidirectional(text: str, field: str) -> None:
    reason = find_bidirectional_control(text)
    if reason is not None:
        raise MalformedText(field, reason)


def _parse_line(text: str, field: str, *, max_length: int) -> str:
    return _check_line(text.strip(), field, max_length=max_length)


def _check_line(line: str, field: str, *, max_length: int) -> str:
    if not 1 <= len(line) <= max_length:
        raise MalformedText(field, f"has {len(line)} characters; 1 to {max_length} are allowed")
    if any(unicodedata.category(char) in {"Cc", "Cs"} for char in line):
        raise MalformedText(field, "must not contain control characters")
    return line
