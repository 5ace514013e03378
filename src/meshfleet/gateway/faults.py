"""Trouble on request: what can go wrong between a gateway and its broker, and in the mesh (gateway-38)."""

from __future__ import annotations

from typing import Final, Self

from msgspec import Struct
from msgspec.structs import fields

from meshfleet.errors import WireError, shown

_LONGEST: Final = 86_400.0
"""Seconds that a fault may be set to."""


class Faults(Struct, frozen=True, kw_only=True, rename="kebab"):
    """How much of each trouble there is: fractions from 0 to 1, but for those in seconds (gateway-39)."""

    loss: float = 0.0
    """Messages that are never published."""
    delay: float = 0.0
    """Seconds that every message comes late."""
    duplicate: float = 0.0
    """Messages that are published twice."""
    reorder: float = 0.0
    """Messages that are overtaken by later ones."""
    quoted_seq: float = 0.0
    """Reports whose `seq` is a string."""
    broken_json: float = 0.0
    """Messages whose payload breaks off."""
    silent: float = 0.0
    """Devices that report and do not answer (gateway-40)."""
    update_fail: float = 0.0
    """Firmware updates that fail."""
    crash: float = 0.0
    """Seconds between crashes; 0: none."""

    @classmethod
    def parse(cls, *texts: str) -> Self:
        """Read faults written as `name=value`; a name that stands twice counts as it stands last."""
        known = {field.encode_name: field.name for field in fields(cls)}
        given = {}
        for text in texts:
            name, _, value = text.partition("=")
            if name not in known:
                raise WireError("fault", f"{shown(name)} is not one of {', '.join(known)}")
            given[known[name]] = _amount(name, value)
        return cls(**given)

    @property
    def touches_messages(self) -> bool:
        """Whether messages are not simply published as they are."""
        return any((self.loss, self.delay, self.duplicate, self.reorder, self.quoted_seq, self.broken_json))


_SECONDS: Final = ("delay", "crash")


def _amount(name: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise WireError(f"fault {name}", f"{shown(text)} is not a number") from None
    most = _LONGEST if name in _SECONDS else 1.0
    if not 0.0 <= value <= most:
        what = "seconds" if name in _SECONDS else "a fraction"
        raise WireError(f"fault {name}", f"{shown(text)} is not {what} from 0 to {most:g}")
    return value
