"""The root of all our errors, and how errors repeat foreign input."""

from __future__ import annotations

from typing import ClassVar, NamedTuple, Self

_SHOWN = 60
"""Characters of foreign input that an error repeats: enough to recognise it, too few to flood a log."""


_LARGE = 10**_SHOWN
"""Python refuses to write out numbers of some thousand digits."""


def shown(value: object) -> str:
    """Foreign input as an error may show it: quoted, escaped, and cut when long."""
    match value:
        case str() | bytes():
            quoted = repr(value[: _SHOWN + 1])
            return quoted if len(quoted) <= _SHOWN else quoted[:_SHOWN] + "…"
        case bool() | float() | None:
            return repr(value)
        case int():
            return repr(value) if abs(value) < _LARGE else "a very large number"
        case dict():
            return "an object"
        case list():
            return "an array"
    return f"a {type(value).__name__}"


def plain(name: str) -> str:
    """A foreign name as the field of an error: as it is when it looks like a name, else as input is shown."""
    return name if len(name) <= _SHOWN and name.isascii() and name.isprintable() else shown(name)


def path(field: str, name: str) -> str:
    """A part of a field, under a name that may be foreign."""
    return f"{field}.{plain(name)}"


class Fault(NamedTuple):
    """What is wrong with one part of a request."""

    field: str
    message: str


class Told(NamedTuple):
    """As much of an error as its problem tells over REST."""

    words: str
    faults: tuple[Fault, ...] = ()
    retry_after: int | None = None


class FleetError(Exception):
    """Anything Meshfleet can say went wrong."""

    code: ClassVar[str] = "error"
    http: ClassVar[int] = 500

    @classmethod
    def told(cls, told: Told) -> Self:
        """The same error at the other end of REST; who is made of more than words makes it of that."""
        return cls(told.words)
