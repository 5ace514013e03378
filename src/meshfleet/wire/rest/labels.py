"""Bodies about labels."""

from __future__ import annotations

from meshfleet.wire.rest.bodies import Ask, Body


class NewLabel(Ask, frozen=True, kw_only=True):
    """A label for the list of labels, and devices to put it on (rest-58, rest-60)."""

    label: str
    device_ids: tuple[str, ...] = ()


class Label(Body, frozen=True, kw_only=True):
    """A label, and on how many devices it is (rest-61)."""

    label: str
    device_count: int


class LabelPage(Body, frozen=True, kw_only=True):
    """Labels, in the order of their letters."""

    items: list[Label]
    next_token: str | None
