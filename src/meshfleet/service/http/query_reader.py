"""Parameters of a query, read one after the other: all that is wrong with them is told at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from meshfleet.errors import Fault, InvalidRequest, MalformedText, WireError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

Value = TypeVar("Value")
Other = TypeVar("Other")


class QueryReader:
    """Reads parameters, and collects what is wrong with them."""

    def __init__(self) -> None:
        self.faults: list[Fault] = []

    def read(
        self, parse: Callable[[str, str], Value], text: str | None, field: str, *, unless: Other
    ) -> Value | Other:
        """The value of a parameter, `unless` there is none; what stands for a wrong one is never used."""
        try:
            return unless if text is None else parse(text, field)
        except WireError as exc:
            self.faults.append(Fault(field, exc.reason))
            return unless

    def check_span(self, since: int | None, until: int | None) -> None:
        """Look whether times follow each other as they should; of wrong ones there is enough to say."""
        if not self.faults and since is not None and until is not None and since >= until:
            self.faults.append(Fault("From", "is not before To"))

    def end(self) -> None:
        """Refuse the request if something is wrong with it."""
        if self.faults:
            raise InvalidRequest(self.faults)


def one_of(known: Mapping[str, Value]) -> Callable[[str, str], Value]:
    """Reads one of these words."""

    def parse(text: str, field: str) -> Value:
        if text not in known:
            raise MalformedText(field, f"is none of {', '.join(known)}")
        return known[text]

    return parse


def parse_flag(text: str, field: str) -> bool:
    """Read what is true or false, in any case."""
    if text.lower() not in {"true", "false"}:
        raise MalformedText(field, "is neither true nor false")
    return text.lower() == "true"
