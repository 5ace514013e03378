"""The notation of layouts in identifier tables.

void bool u8 u16 u32 u48 s8 s16 s32 float text mac version version4 accelerometer
hex(65)                       so many bytes, as hex
dotted(2)                     so many bytes, as 1.0
bit(0)                        a byte of flags, of which this one is known
s16/100                       a scaled number
u16 20..10240                 a number with limits for writing, in units of the raw number
u8(dfu=1, connected=2)        numbers that stand for words
{interval: u16, priority: u8 = 2, msgSize?: u8}
                              a record; `= 2` is written when absent, `?` marks fields a value may end before
[u8 mac]                      a counted list: the type of the count, the type of the elements
dictionary(0 mac: mac, 1 variant: u8)
                              entries of key, length and value
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from meshfleet.wire.identifiers.accelerometer import AccelerometerConfiguration
from meshfleet.wire.identifiers.composites import CountedList, Dictionary, Field, Record
from meshfleet.wire.identifiers.layouts import (
    Bit,
    Bool,
    Dotted,
    FirmwareVersion,
    Float,
    HexBytes,
    Layout,
    LoneFirmwareVersion,
    Number,
    Text,
    Void,
    Words,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_NUMBERS: Final = {
    "u8": (1, False),
    "u16": (2, False),
    "u32": (4, False),
    "u48": (6, False),
    "s8": (1, True),
    "s16": (2, True),
    "s32": (4, True),
}
_PLAIN: Final[Mapping[str, Callable[[], Layout]]] = {
    "void": Void,
    "bool": Bool,
    "float": Float,
    "text": Text,
    "mac": lambda: HexBytes(6),
    "version": LoneFirmwareVersion,
    "version4": FirmwareVersion,
    "accelerometer": AccelerometerConfiguration,
}
_SIZED: Final[Mapping[str, Callable[[int], Layout]]] = {"hex": HexBytes, "dotted": Dotted, "bit": Bit}
_MOST: Final = {"hex": 255, "dotted": 8, "bit": 7}

_OPEN_ENDED = (Text, Dictionary, LoneFirmwareVersion)
"""Layouts that take bytes to the end, so that nothing can follow."""

_TOKEN = re.compile(r"\s*(?:(-?\d+|[A-Za-z][A-Za-z0-9]*)|(\.\.|[{}()\[\],:=?/]))")


class NotationError(ValueError):
    """A layout that is not written as it should be."""


def parse_layout(text: str) -> Layout:
    """Turn the notation into a layout, or raise `NotationError`."""
    reader = _Reader(text)
    layout = reader.layout()
    reader.expect("")
    return layout


class _Reader:
    """Reads the notation from left to right, one token ahead."""

    def __init__(self, text: str) -> None:
        self._tokens = _tokens(text)
        self._next = 0

    @property
    def _token(self) -> str:
        return self._tokens[self._next]

    def _take(self) -> str:
        token = self._token
        self._next += 1
        return token

    def _took(self, token: str) -> bool:
        found = self._token == token
        self._next += found
        return found

    def expect(self, token: str) -> None:
        """Step over a token that must come now; the empty one is the end."""
        if self._token != token:
            raise NotationError(f"{_named(token)} expected, {_named(self._token)} found")
        self._next += 1

    def layout(self) -> Layout:
        """Read one layout."""
        word = self._take()
        match word:
            case "{":
                return self._record()
            case "[":
                return self._list()
            case "dictionary":
                return self._dictionary()
        if word in _NUMBERS:
            return self._number(word)
        if word in _PLAIN:
            return _PLAIN[word]()
        if word in _SIZED:
            return self._sized(word)
        raise NotationError(f"{_named(word)} is not a type")

    def _int(self) -> int:
        token = self._take()
        try:
            return int(token)
        except ValueError:
            raise NotationError(f"a number expected, {_named(token)} found") from None

    def _name(self) -> str:
        token = self._take()
        if not token[:1].isalpha():
            raise NotationError(f"a name expected, {_named(token)} found")
        return token

    def _sized(self, word: str) -> Layout:
        self.expect("(")
        size = self._int()
        self.expect(")")
        if not (0 if word == "bit" else 1) <= size <= _MOST[word]:
            raise NotationError(f"{word}({size}) is out of range")
        return _SIZED[word](size)

    def _number(self, word: str) -> Number | Words:
        size, signed = _NUMBERS[word]
        scale = self._int() if self._took("/") else 1
        if scale < 1:
            raise NotationError(f"a number cannot be divided by {scale}")
        limits = self._limits() if self._token.lstrip("-").isdigit() else None
        try:
            number = Number(size, signed=signed, scale=scale, limits=limits)
        except ValueError as exc:
            raise NotationError(f"{word}: {exc}") from exc
        return self._words(number) if self._took("(") else number

    def _limits(self) -> tuple[int, int]:
        low = self._int()
        self.expect("..")
        high = self._int()
        return low, high

    def _words(self, number: Number) -> Words:
        words: dict[str, int] = {}
        while True:
            word = self._name()
            self.expect("=")
            code = self._int()
            if word in words or code in words.values():
                raise NotationError(f"{word}={code} is there twice")
            words[word] = code
            if not self._took(","):
                self.expect(")")
                return Words(number, words)

    def _list(self) -> CountedList:
        count = self.layout()
        if not isinstance(count, Number):
            raise NotationError("the count of a list is a plain number")
        element = self.layout()
        if isinstance(element, (*_OPEN_ENDED, Void)):
            raise NotationError("the elements of a list need a size")
        self.expect("]")
        return CountedList(count, element)

    def _record(self) -> Record:
        fields: list[Field] = []
        while True:
            field = self._field()
            if fields and isinstance(fields[-1].layout, _OPEN_ENDED):
                raise NotationError(f"nothing can follow {fields[-1].name}, which takes all bytes")
            if fields and fields[-1].optional and not field.optional:
                raise NotationError(f"{field.name} follows an optional field, so it is optional too")
            if any(field.name == other.name for other in fields):
                raise NotationError(f"{field.name} is there twice")
            fields.append(field)
            if not self._took(","):
                self.expect("}")
                return Record(fields)

    def _field(self) -> Field:
        name = self._name()
        optional = self._took("?")
        self.expect(":")
        layout = self.layout()
        default = self._int() if self._took("=") else None
        if default is not None and (optional or not isinstance(layout, Number)):
            raise NotationError(f"{name}: only a number that is always there has a default")
        return Field(name, layout, optional, default)

    def _dictionary(self) -> Dictionary:
        self.expect("(")
        entries: dict[int, tuple[str, Layout]] = {}
        while True:
            key = self._int()
            name = self._name()
            self.expect(":")
            if key in entries or not 0 <= key <= 255:  # noqa: PLR2004 # one byte
                raise NotationError(f"key {key} is there twice, or not a byte")
            if any(name == other for other, _ in entries.values()):
                raise NotationError(f"{name} is there twice")
            entries[key] = (name, self.layout())
            if not self._took(","):
                self.expect(")")
                return Dictionary(entries)


def _tokens(text: str) -> list[str]:
    tokens, at = [], 0
    text = text.rstrip()
    while at < len(text):
        found = _TOKEN.match(text, at)
        if found is None:
            raise NotationError(f"{text[at:].strip()[:20]!r} is not understood")
        tokens.append(found[1] or found[2])
        at = found.end()
    return [*tokens, ""]


def _named(token: str) -> str:
    return repr(token) if token else "the end"
