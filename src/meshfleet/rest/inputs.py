"""Parsing of strings in requests of the REST API, such as names, labels and passwords."""

from __future__ import annotations

import re
import unicodedata
from typing import Final

from meshfleet.errors.protocol import MalformedPayload, MalformedText

MIN_RESULTS: Final = 1
"""Minimum of the query parameter `MaxResults`, inclusive (rest-23)."""
MAX_RESULTS: Final = 1000
"""Maximum of the query parameter `MaxResults`, inclusive (rest-23)."""
DEFAULT_RESULTS: Final = 100
"""Number of items on a page if the query parameter `MaxResults` is absent (rest-23)."""


def parse_max_results(text: str) -> int:
    """Parse the query parameter `MaxResults`: the maximum number of items on a page (rest-23)."""
    if not re.fullmatch(r"[0-9]{1,4}", text) or not MIN_RESULTS <= int(text) <= MAX_RESULTS:
        raise MalformedPayload("MaxResults", f"must be a number from {MIN_RESULTS} to {MAX_RESULTS}")
    return int(text)


def parse_retry_after(text: str) -> int | None:
    """Return the seconds in a `Retry-After` header; None if the header is not a number, but a date."""
    return int(text) if re.fullmatch(r"[0-9]{1,9}", text) else None


_BEARER = re.compile(r"bearer ([A-Za-z0-9\-._~+/]+=*)", re.IGNORECASE | re.ASCII)


def parse_bearer(header: str) -> str | None:
    """Return the bearer token in an `Authorization` header; None if there is no such token (auth-5)."""
    match = _BEARER.fullmatch(header)
    return match[1] if match else None


_BIDIRECTIONAL: Final = frozenset(
    {"\u061c", "\u200e", "\u200f", *map(chr, range(0x202A, 0x202F)), *map(chr, range(0x2066, 0x206A))}
)
"""Bidirectional control characters, which change the order in which the characters of a string appear."""


def find_bidirectional_control(text: str) -> str | None:
    """Describe the first bidirectional control character in a string; None if the string contains none.

    With such characters, a string can look like a different string. Scripts that are written from right to
    left do not need these characters.
    """
    found = next((char for char in text if char in _BIDIRECTIONAL), None)
    if found is None:
        return None
    return f"has the bidirectional control character U+{ord(found):04X} ({unicodedata.name(found)})"


def parse_friendly_name(text: str, field: str = "name") -> str:
    """Parse the new friendly name of a device: 1 to 128 characters after trimming (rest-44)."""
    return _parse_entered_line(text, field, max_length=128)


def parse_name_part(text: str, field: str = "name") -> str:
    """Parse a part of a friendly name to search for. Leading and trailing spaces are kept."""
    return _check_line(text, field, max_length=128)


def parse_label(text: str, field: str = "label") -> str:
    """Parse a device label: 1 to 64 characters after trimming and normalization to NFC (rest-66, rest-67)."""
    label = _parse_line(unicodedata.normalize("NFC", text), field, max_length=64)
    if label in {".", ".."}:
        raise MalformedText(field, f"{label!r} cannot be part of a path")
    return label


def parse_new_label(text: str, field: str = "label") -> str:
    """Parse a label to attach. It must not contain bidirectional control characters, as old labels may."""
    label = parse_label(text, field)
    _refuse_bidirectional(label, field)
    return label


MIN_PASSWORD: Final = 10
"""Minimum length of a password in characters, inclusive."""
MAX_PASSWORD: Final = 1024
"""Maximum length of a password in characters, inclusive. Hashing longer passwords would only waste time."""

_USERNAME = re.compile(r"[a-z0-9][a-z0-9._@+-]{0,63}")
_GATEWAY = re.compile(r"[0-9a-f]{12}")


def parse_username(text: str, field: str = "username") -> str:
    """Parse a user name, and convert upper case to lower case."""
    name = text.lower()
    if not _USERNAME.fullmatch(name):
        raise MalformedText(
            field, "must have 1 to 64 letters, digits and . _ @ + -, and begin with a letter or digit"
        )
    if name == "apikey" or _GATEWAY.fullmatch(name):
        raise MalformedText(field, "is reserved: API keys and gateways use such user names on MQTT")
    return name


def parse_password(text: str, field: str = "password") -> str:
    """Return the new password of a user. Raise `MalformedText` if it is too short or too long (auth-22)."""
    if not MIN_PASSWORD <= len(text) <= MAX_PASSWORD:
        raise MalformedText(field, f"must have {MIN_PASSWORD} to {MAX_PASSWORD} characters")
    return text


def parse_key_name(text: str, field: str = "name") -> str:
    """Parse the name of a new API key."""
    return _parse_entered_line(text, field, max_length=64)


def parse_title(text: str, field: str = "name") -> str:
    """Parse the name of a channel or of a route of alarms: 1 to 100 characters after trimming."""
    return _parse_entered_line(text, field, max_length=100)


def _parse_entered_line(text: str, field: str, *, max_length: int) -> str:
    """Trim and check a line that a user enters now. Refuse bidirectional control characters."""
    line = _parse_line(text, field, max_length=max_length)
    _refuse_bidirectional(line, field)
    return line


def _refuse_bidirectional(text: str, field: str) -> None:
    reason = find_bidirectional_control(text)
    if reason is not None:
        raise MalformedText(field, reason)


def _parse_line(text: str, field: str, *, max_length: int) -> str:
    """Trim a line of text, and check its length and characters."""
    return _check_line(text.strip(), field, max_length=max_length)


def _check_line(line: str, field: str, *, max_length: int) -> str:
    """Return a line unchanged. Raise `MalformedText` for a wrong length or control characters."""
    if not 1 <= len(line) <= max_length:
        raise MalformedText(field, f"has {len(line)} characters; 1 to {max_length} are allowed")
    if any(unicodedata.category(char) in {"Cc", "Cs"} for char in line):
        raise MalformedText(field, "must not contain control characters")
    return line
