"""Notation of layouts in identifier tables, and its parser.

void bool u8 u16 u32 u48 s8 s16 s32 float text mac version version4 accelerometer
hex(65)                       65 bytes, as hex
dotted(2)                     2 bytes, as "1.0"
bit(0)                        a byte of which only bit 0 is known
s16/100                       a number that is divided by 100 in JSON
u16 20..10240                 a number with limits for writing, in units of the raw number
u8(dfu=1, connected=2)        numbers that represent keywords
{interval: u16, priority: u8 = 2, msgSize?: u8}
                              a record; `= 2` is the default for writing, `?` marks fields that may be missing
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
"""Layouts with a number in parentheses: the class, and the lowest and highest allowed number."""


_TOKEN = re.compile(r"\s*(?:(-?[0-9]+|[A-Za-z][A-Za-z0-9]*)|(\.\.|[{}()\[\],:=?/]))")


class NotationError(ValueError):
    """Raised for an error in the notation of a layout."""


def parse_layout(text: str) -> Layout:
    """Parse the notation of a layout, or raise `NotationError`."""
    parser = _Parser(text)
    layout = parser.parse_layout()
    parser.expect("")
    return layout


class _Parser:
    """Recursive descent parser of the layout notation, with one token of lookahead."""

    def __init__(self, text: str) -> None:
        self._tokens = _tokenize(text)
        self._position = 0

    @property
    def _token(self) -> str:
        """Token at the current position; "" at the end of the input."""
        return self._tokens[self._position]

    def _consume_token(self) -> str:
        """Return the token at the current position, and move on to the next token."""
        token = self._token
        self._position += bool(token)
        return token

    def _accept(self, token: str) -> bool:
        """Consume the token at the current position if it is `token`. Return whether it is."""
        is_match = self._token == token
        self._position += is_match
        return is_match

    def expect(self, token: str) -> None:
        """Consume `token`, or raise NotationError if another token is next. "" means the end of the input."""
        if self._token != token:
            raise NotationError(f"expected {_quote_token(token)}, found {_quote_token(self._token)}")
        self._consume_token()

    def parse_layout(self) -> Layout:
        """Parse the layout of a whole value."""
        if self._accept("{"):
            return RecordLayout(self._parse_fields())
        if self._accept("dictionary"):
            return DictionaryLayout(self._parse_entries())
        return self._parse_part()

    def _parse_part(self) -> Layout:
        """Parse a layout that may be a field of a record."""
        if self._accept("["):
            return self._parse_list()
        return self._parse_scalar()

    def _parse_scalar(self) -> Layout:
        """Parse a layout without parts, such as `u16`, `text` or `hex(65)`."""
        name = self._consume_token()
        if name in _NUMBER_LAYOUTS:
            return self._parse_number(name)
        if name in _SIMPLE_LAYOUTS:
            return _SIMPLE_LAYOUTS[name]()
        if name in _SIZED_LAYOUTS:
            return self._parse_sized(name)
        here = " here" if name in {"{", "[", "dictionary"} else ""
        raise NotationError(f"{_quote_token(name)} is not a type{here}")

    def _parse_int(self) -> int:
        token = self._consume_token()
        if not token.lstrip("-").isdigit():
            raise NotationError(f"expected a number, found {_quote_token(token)}")
        if len(token) > _MAX_NUMBER_LENGTH:
            raise NotationError(f"{_quote_token(token)} has more than {_MAX_NUMBER_LENGTH} digits")
        return int(token)

    def _parse_name(self) -> str:
        token = self._consume_token()
        if not token[:1].isalpha():
            raise NotationError(f"expected a name, found {_quote_token(token)}")
        if len(token) > _MAX_NAME_LENGTH:
            raise NotationError(f"{_quote_token(token)} has more than {_MAX_NAME_LENGTH} characters")
        return token

    def _parse_sized(self, name: str) -> Layout:
        """Parse the number in parentheses after the name of a layout, such as `(65)` after `hex`."""
        self.expect("(")
        size = self._parse_int()
        self.expect(")")
        create_layout, min_size, max_size = _SIZED_LAYOUTS[name]
        if not min_size <= size <= max_size:
            raise NotationError(f"{name}({size}) is not between {name}({min_size}) and {name}({max_size})")
        return create_layout(size)

    def _parse_number(self, name: str) -> NumberLayout | EnumLayout:
        """Parse the scale, limits or keywords after a type of number, such as `/100` after `s16`."""
        size, signed = _NUMBER_LAYOUTS[name]
        scale = self._parse_int() if self._accept("/") else 1
        if scale < 1:
            raise NotationError(f"a number cannot be divided by {scale}")
        limits = self._parse_limits() if self._token.lstrip("-").isdigit() else None
        try:
            number = NumberLayout(size, signed=signed, scale=scale, limits=limits)
        except ValueError as exc:
            raise NotationError(f"{name}: {exc}") from exc
        if not self._accept("("):
            return number
        if scale != 1:
            raise NotationError("a scaled number cannot represent keywords")
        return self._parse_keywords(number)

    def _parse_limits(self) -> tuple[int, int]:
        low = self._parse_int()
        self.expect("..")
        return low, self._parse_int()

    def _parse_keywords(self, number: NumberLayout) -> EnumLayout:
        keywords: dict[str, int] = {}
        while True:
            keyword = self._parse_name()
            self.expect("=")
            code = self._parse_int()
            if keyword in keywords or code in keywords.values():
                raise NotationError(f"{_quote_token(keyword)} or {code} is used twice")
            keywords[keyword] = code
            if not self._accept(","):
                self.expect(")")
                return _build_checked(lambda: EnumLayout(number, keywords))

    def _parse_list(self) -> ListLayout:
        count, element = self._parse_scalar(), self._parse_scalar()
        if not isinstance(count, NumberLayout) or count.size > _MAX_COUNT_BYTES or not count.is_plain:
            raise NotationError("the count of a list must be u8 or u16")
        if not isinstance(element, FixedLayout):
            raise NotationError("the elements of a list must have a fixed size")
        self.expect("]")
        return ListLayout(count, element)

    def _parse_fields(self) -> list[RecordField]:
        fields: list[RecordField] = []
        while True:
            field = self._parse_field()
            if any(field.name == other.name for other in fields):
                raise NotationError(f"{_quote_token(field.name)} is used twice")
            if len(fields) == _MAX_FIELDS:
                raise NotationError(f"a record has at most {_MAX_FIELDS} fields")
            if fields:
                _check_order(fields[-1], field)
            fields.append(field)
            if not self._accept(","):
                self.expect("}")
                return fields

    def _parse_field(self) -> RecordField:
        name = self._parse_name()
        optional = self._accept("?")
        self.expect(":")
        layout = self._parse_part()
        if isinstance(layout, VoidLayout):
            raise NotationError(f"{_quote_token(name)}: void is not allowed in a record")
        if optional and not isinstance(layout, FixedLayout):
            raise NotationError(f"{_quote_token(name)}: only a field of fixed size can be optional")
        default = self._parse_int() if self._accept("=") else None
        if default is not None:
            if optional or not isinstance(layout, NumberLayout):
                raise NotationError(f"{_quote_token(name)}: only a required number can have a default")
            _build_checked(lambda: layout.encode(default, name))
        return RecordField(name, layout, optional, default)

    def _parse_entries(self) -> dict[int, tuple[str, Layout]]:
        self.expect("(")
        entries: dict[int, tuple[str, Layout]] = {}
        while True:
            key = self._parse_int()
            name = self._parse_name()
            self.expect(":")
            if key in entries or any(name == other for other, _ in entries.values()):
                raise NotationError(f"{_quote_token(name)} or key {key} is used twice")
            if not 0 <= key <= _MAX_KEY:
                raise NotationError(f"key {key} is not a byte")
            entries[key] = (name, self._parse_scalar())
            if not self._accept(","):
                self.expect(")")
                return entries


_MAX_COUNT_BYTES: Final = 2
"""Maximum size of the element count of a list, in bytes; more would be implausible."""

_MAX_KEY: Final = 255
_MAX_FIELDS: Final = 255
_MAX_NAME_LENGTH: Final = 64
_MAX_NUMBER_LENGTH: Final = 15


def _check_order(last: RecordField, field: RecordField) -> None:
    """Raise NotationError if `field` may not follow the field `last` in a record."""
    if not isinstance(last.layout, FixedLayout):
        raise NotationError(f"no field can follow {_quote_token(last.name)}, which has no fixed size")
    if last.optional and not field.optional:
        raise NotationError(
            f"{_quote_token(field.name)} follows an optional field, so it must be optional too"
        )


_BuiltT = TypeVar("_BuiltT")


def _build_checked(build: Callable[[], _BuiltT]) -> _BuiltT:
    """Call `build`, and raise NotationError if it fails because a number does not fit its layout."""
    try:
        return build()
    except UnencodableValue as exc:
        raise NotationError(str(exc)) from exc


def _tokenize(text: str) -> list[str]:
    """Split the notation of a layout into tokens, followed by "" for the end of the input."""
    tokens, position = [], 0
    text = text.rstrip()
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            unknown = text[position : position + _MAX_QUOTED_CHARACTERS].strip()
            raise NotationError(f"{quote_input(unknown)} is not valid syntax")
        tokens.append(match[1] or match[2])
        position = match.end()
    return [*tokens, ""]


_MAX_QUOTED_CHARACTERS: Final = 20


def _quote_token(token: str) -> str:
    return quote_input(token[:_MAX_QUOTED_CHARACTERS]) if token else "the end"
