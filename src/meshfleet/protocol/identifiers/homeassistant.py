"""Parses the column `homeassistant` of identifier tables: the entity that shows an identifier.

sensor temperature measurement precision=1
binary_sensor safety write=clear
number config off step=100

These three lines are examples. The first word is the platform of the entity. Further words, in any order:

measurement, total, total_increasing    state class
diagnostic, config                      category
off                                     the entity is disabled until a user enables it
precision=1                             displayed decimals
unknown=255                             value that stands for an unknown value
step=100                                step of a number
write=clear                             with commands: a further entity, a button that writes false
write=switch                            with commands: a switch replaces the entity
options=power-on:0,pin:1                keywords of an enumeration, unless the type has keywords
any other word                          device class, such as temperature
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from meshfleet.errors import quote_input
from meshfleet.protocol.identifiers.layouts import BoolLayout, EnumLayout, NumberLayout, VoidLayout

if TYPE_CHECKING:
    from collections.abc import Mapping

    from meshfleet.protocol.identifiers.layouts import Layout


class EntityPlatform(StrEnum):
    """Platform of an entity: the kind of entity in Home Assistant."""

    SENSOR = "sensor"
    BINARY_SENSOR = "binary_sensor"
    EVENT = "event"
    NUMBER = "number"
    """Number that a user can set; shown only if commands are on."""
    BUTTON = "button"
    """Button that writes an identifier without a value; shown only if commands are on."""


class WriteMode(StrEnum):
    """How users can write a boolean property, if commands are on."""

    CLEAR = "clear"
    """A button beside the entity writes false."""
    SWITCH = "switch"
    """A switch replaces the entity."""


class EntityDefinition(Struct, frozen=True, kw_only=True):
    """Entity that Home Assistant shows for an identifier."""

    platform: EntityPlatform
    device_class: str | None = None
    state_class: str | None = None
    category: str | None = None
    is_enabled: bool = True
    """Whether the entity is enabled by default."""
    precision: int | None = None
    unknown: int | None = None
    """Value that stands for an unknown value; None if there is no such value."""
    step: int = 1
    """Step of a number: allowed values are multiples of it."""
    write: WriteMode | None = None
    options: dict[str, int] = {}
    """Numbers of an enumeration by keyword."""


_STATE_CLASSES: Final = {"measurement", "total", "total_increasing"}
_CATEGORIES: Final = {"diagnostic", "config"}
_DEVICE_CLASS: Final = re.compile(r"[a-z][a-z0-9_]{0,63}")
_OPTION: Final = re.compile(r"([a-z0-9][a-z0-9-]{0,63}):([0-9]{1,10})")
_NUMBER: Final = re.compile(r"[0-9]{1,6}")


def parse_entity(text: str) -> EntityDefinition | None:
    """Parse a cell of the column `homeassistant`; None if the cell is empty.

    Raise `ValueError` with the reason if the cell is malformed.
    """
    platform, *words = text.split() or [""]
    if not platform:
        return None
    if platform not in set(EntityPlatform):
        raise ValueError(f"{quote_input(platform)} is not one of {', '.join(EntityPlatform)}")
    fields: dict[str, object] = {"platform": EntityPlatform(platform)}
    for word in words:
        name, value = _parse_word(word)
        if name in fields:
            raise ValueError(f"{quote_input(word)}: only one such word is possible")
        fields[name] = value
    return EntityDefinition(**fields)  # type: ignore[arg-type] # _parse_word returns the right types


def _parse_word(word: str) -> tuple[str, object]:
    """Return the name and value of the field of `EntityDefinition` that a word of a cell sets."""
    name, separator, value = word.partition("=")
    if separator:
        return _parse_assignment(name, value)
    if word in _STATE_CLASSES:
        return "state_class", word
    if word in _CATEGORIES:
        return "category", word
    if word == "off":
        return "is_enabled", False
    if not _DEVICE_CLASS.fullmatch(word):
        raise ValueError(f"{quote_input(word)} is not the name of a device class")
    return "device_class", word


def _parse_assignment(name: str, value: str) -> tuple[str, object]:
    """Parse a word such as `precision=1`. Return the name and the parsed value."""
    if name == "write":
        if value not in set(WriteMode):
            raise ValueError(f"write: {quote_input(value)} is not one of {', '.join(WriteMode)}")
        return name, WriteMode(value)
    if name == "options":
        found = [_OPTION.fullmatch(each) for each in value.split(",")]
        if not all(found):
            raise ValueError("options must be words with numbers, such as power-on:0,pin:1")
        return name, {match[1]: int(match[2]) for match in found if match is not None}
    if name not in {"precision", "unknown", "step"}:
        raise ValueError(f"{quote_input(name)} is not one of precision, unknown, step, write, options")
    if not _NUMBER.fullmatch(value) or (name == "step" and not int(value)):
        raise ValueError(f"{name}: {quote_input(value)} is not a suitable number")
    return name, int(value)


def check_entity(entity: EntityDefinition, layout: Layout | None) -> None:
    """Raise `ValueError` if an entity cannot show values of this layout (type of value)."""
    needed = _NEEDED_LAYOUTS.get(entity.platform)
    if needed is not None and not isinstance(layout, needed[0]):
        raise ValueError(f"the type of a {entity.platform} must be {needed[1]}")
    if entity.write is not None and not isinstance(layout, BoolLayout):
        raise ValueError("only the type bool can have write")
    if entity.device_class == "enum" and not entity.options and not isinstance(layout, EnumLayout):
        raise ValueError("an enum needs options, or a type with keywords")


_NEEDED_LAYOUTS: Final[Mapping[str, tuple[type[Layout], str]]] = {
    EntityPlatform.NUMBER: (NumberLayout, "a number"),
    EntityPlatform.BUTTON: (VoidLayout, "void"),
}
