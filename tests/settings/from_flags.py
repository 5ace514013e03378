"""Helpers that load settings from flags, named by Python parameters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest

from meshfleet.errors.startup import WrongSettings
from meshfleet.settings import SETTINGS, load_settings

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from meshfleet.errors import Fault
    from meshfleet.settings import Settings

_NAMES: Final = {each.parameter: each.name for each in SETTINGS}


def settings(variables: Mapping[str, str] | None = None, /, **flags: str) -> Settings:
    """Load settings from variables and flags."""
    return load_settings({_NAMES[field]: text for field, text in flags.items()}, variables or {})


def faults(
    variables: Mapping[str, str] | None = None, file: Path | None = None, /, **flags: str
) -> list[Fault]:
    """Load invalid settings, and return all mistakes."""
    with pytest.raises(WrongSettings) as raised:
        load_settings({_NAMES[field]: text for field, text in flags.items()}, variables or {}, file=file)
    return list(raised.value.faults)
