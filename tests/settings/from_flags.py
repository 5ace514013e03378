"""Settings as tests read them: flags go by the fields of their settings."""

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
    """What is told by these."""
    return load_settings({_NAMES[field]: text for field, text in flags.items()}, variables or {})


def faults(
    variables: Mapping[str, str] | None = None, file: Path | None = None, /, **flags: str
) -> list[Fault]:
    """What is wrong with these, which is something."""
    with pytest.raises(WrongSettings) as raised:
        load_settings({_NAMES[field]: text for field, text in flags.items()}, variables or {}, file=file)
    return list(raised.value.faults)
