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
from typing import TYPE_CHECKING, Final, TypeVar

from meshfleet.errors import quote_input
from meshfleet.errors.protocol import UnencodableValue
from meshfleet.protocol.identifiers.accelerometer import AccelerometerLayout
from meshfleet.protocol.identifiers.composites import DictionaryLayout, ListLayout, RecordField, RecordLayout
from meshfleet.protocol.identifiers.layouts import (
    BoolLayout,
    DottedLayout,
    EnumLayout,
    FixedLayout,
    FlagLayout,
    FloatLayout,
    HexLayout,
    Layout,
    NumberLayout,
    TextLayout,
    TrailingVersionLayout,
    VersionLayout,
    VoidLayout,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_NUMBER_LAYOUTS: Final = {
    "u8": (1, False),
    "u16": (2, False),
    "u32": (4, False),
    "u48": (6, False),
    "s8": (1, True),
    "s16": (2, True),
    "s32": (4, True),
}
_SIMPLE_LAYOUTS: Final[Mapping[str, Callable[[], Layout]]] = {
    "void": VoidLayout,
    "bool": BoolLayout,
    "float": FloatLayout,
    "text": TextLayout,
    "mac": lambda: HexLayout(6),
    "version": TrailingVersionLayout,
    "version4": VersionLayout,
    "accelerometer": AccelerometerLayout,
}
_SIZED_LAYOUTS: Final[Mapping[str, tuple[Callable[[int], Layout], int, int]]] = {
    "hex": (HexLayout, 1, 255),
    "dotted": (DottedLayout, 1, 8),
    "bit": (FlagLayout, 0, 7),
}
"""What takes a number in brackets, and between which."""


_TOKEN = re.compile(r"\s*(?:(-?[0-9]+|[A-Za-z][A-Za-z0-9]*)|(\.\.|[{}()\[\],:=?/]))")


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
        self._next += bool(token)
        return token

    def _took(self, token: str) -> bool:
        found = self._token == token
        self._next += found
        return found

    def expect(self, token: str) -> None:
        """Step over a token that must come now; the empty one is the end."""
        if self._token != token:
            raise NotationError(f"{_quote_token(token)} expected, {_quote_token(self._token)} found")
        self._take()

    def layout(self) -> Layout:
        """Read the layout of a whole value."""
        if self._took("{"):
            return RecordLayout(self._fields())
        if self._took("dictionary"):
            return DictionaryLayout(self._entries())
        return self._part()

    def _part(self) -> Layout:
        """Read what may be part of a record."""
        if self._took("["):
            return self._list()
        return self._scalar()

    def _scalar(self) -> Layout:
        word = self._take()
        if word in _NUMBER_LAYOUTS:
            return self._number(word)
        if word in _SIMPLE_LAYOUTS:
            return _SIMPLE_LAYOUTS[word]()
        if word in _SIZED_LAYOUTS:
            return self._sized(word)
        here = " here" if word in {"{", "[", "dictionary"} else ""
        raise NotationError(f"{_quote_token(word)} is not a type{here}")

    def _int(self) -> int:
        token = self._take()
        if not token.lstrip("-").isdigit():
            raise NotationError(f"a number expected, {_quote_token(token)} found")
        if len(token) > _LONGEST_NUMBER:
            raise NotationError(f"{_quote_token(token)} has more than {_LONGEST_NUMBER} digits")
        return int(token)

    def _name(self) -> str:
        token = self._take()
        if not token[:1].isalpha():
            raise NotationError(f"a name expected, {_quote_token(token)} found")
        if len(token) > _LONGEST_NAME:
            raise NotationError(f"{_quote_token(token)} has more than {_LONGEST_NAME} characters")
        return token

    def _sized(self, word: str) -> Layout:
        self.expect("(")
        size = self._int()
        self.expect(")")
        make, least, most = _SIZED_LAYOUTS[word]
        if not least <= size <= most:
            raise NotationError(f"{word}({size}) is not between {word}({least}) and {word}({most})")
        return make(size)

    def _number(self, word: str) -> NumberLayout | EnumLayout:
        size, signed = _NUMBER_LAYOUTS[word]
        scale = self._int() if self._took("/") else 1
        if scale < 1:
            raise NotationError(f"a number cannot be divided by {scale}")
        limits = self._limits() if self._token.lstrip("-").isdigit() else None
        try:
            number = NumberLayout(size, signed=signed, scale=scale, limits=limits)
        except ValueError as exc:
            raise NotationError(f"{word}: {exc}") from exc
        if not self._took("("):
            return number
        if scale != 1:
            raise NotationError("a scaled number stands for no word")
        return self._words(number)

    def _limits(self) -> tuple[int, int]:
        low = self._int()
        self.expect("..")
        return low, self._int()

    def _words(self, number: NumberLayout) -> EnumLayout:
        words: dict[str, int] = {}
        while True:
            word = self._name()
            self.expect("=")
            code = self._int()
            if word in words or code in words.values():
                raise NotationError(f"{_quote_token(word)} or {code} is there twice")
            words[word] = code
            if not self._took(","):
                self.expect(")")
                return _build_checked(lambda: EnumLayout(number, words))

    def _list(self) -> ListLayout:
        count, element = self._scalar(), self._scalar()
        if not isinstance(count, NumberLayout) or count.size > _LARGEST_COUNT or not count.is_plain:
            raise NotationError("the count of a list is u8 or u16")
        if not isinstance(element, FixedLayout):
            raise NotationError("the elements of a list need a fixed size")
        self.expect("]")
        return ListLayout(count, element)

    def _fields(self) -> list[RecordField]:
        fields: list[RecordField] = []
        while True:
            field = self._field()
            if any(field.name == other.name for other in fields):
                raise NotationError(f"{_quote_token(field.name)} is there twice")
            if len(fields) == _MOST_FIELDS:
                raise NotationError(f"a record has at most {_MOST_FIELDS} fields")
            if fields:
                _check_order(fields[-1], field)
            fields.append(field)
            if not self._took(","):
                self.expect("}")
                return fields

    def _field(self) -> RecordField:
        name = self._name()
        optional = self._took("?")
        self.expect(":")
        layout = self._part()
        if isinstance(layout, VoidLayout):
            raise NotationError(f"{_quote_token(name)}: void is no part of a record")
        if optional and not isinstance(layout, FixedLayout):
            raise NotationError(f"{_quote_token(name)}: only a field of fixed size is optional")
        default = self._int() if self._took("=") else None
        if default is not None:
            if optional or not isinstance(layout, NumberLayout):
                raise NotationError(f"{_quote_token(name)}: only a number that is always there has a default")
            _build_checked(lambda: layout.encode(default, name))
        return RecordField(name, layout, optional, default)

    def _entries(self) -> dict[int, tuple[str, Layout]]:
        self.expect("(")
        entries: dict[int, tuple[str, Layout]] = {}
        while True:
            key = self._int()
            name = self._name()
            self.expect(":")
            if key in entries or any(name == other for other, _ in entries.values()):
                raise NotationError(f"{_quote_token(name)} or key {key} is there twice")
            if not 0 <= key <= _LARGEST_KEY:
                raise NotationError(f"key {key} is not a byte")
            entries[key] = (name, self._scalar())
            if not self._took(","):
                self.expect(")")
                return entries


_LARGEST_COUNT: Final = 2
"""Bytes: a longer count could not be believed anyway."""

_LARGEST_KEY: Final = 255
_MOST_FIELDS: Final = 255
_LONGEST_NAME: Final = 64
_LONGEST_NUMBER: Final = 15


def _check_order(last: RecordField, field: RecordField) -> None:
    if not isinstance(last.layout, FixedLayout):
        raise NotationError(f"nothing can follow {_quote_token(last.name)}, which has no fixed size")
    if last.optional and not field.optional:
        raise NotationError(f"{_quote_token(field.name)} follows an optional field, so it is optional too")


_BuiltT = TypeVar("_BuiltT")


def _build_checked(make: Callable[[], _BuiltT]) -> _BuiltT:
    """Make something of the notation's numbers; one that does not fit is a mistake in the notation."""
    try:
        return make()
    except UnencodableValue as exc:
        raise NotationError(str(exc)) from exc


def _tokens(text: str) -> list[str]:
    tokens, at = [], 0
    text = text.rstrip()
    while at < len(text):
        found = _TOKEN.match(text, at)
        if found is None:
            raise NotationError(
                f"{quote_input(text[at : at + _MAX_QUOTED_CHARACTERS].strip())} is not understood"
            )
        tokens.append(found[1] or found[2])
        at = found.end()
    return [*tokens, ""]


_MAX_QUOTED_CHARACTERS: Final = 20


def _quote_token(token: str) -> str:
    return quote_input(token[:_MAX_QUOTED_CHARACTERS]) if token else "the end"
