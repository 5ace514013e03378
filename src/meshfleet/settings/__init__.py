"""Settings of the service: loads them from flags, environment variables and a file, and checks them.

Code that only reads settings imports `model`. The other modules are imported on first use.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Final

from meshfleet.settings.model import ListenAddress, Retention, Settings

if TYPE_CHECKING:
    from meshfleet.settings.loader import (
        find_settings_file,
        list_given_names,
        list_retired_settings,
        load_settings,
    )
    from meshfleet.settings.table import SETTINGS, Setting
else:
    _LAZY_NAMES: Final = {
        "SETTINGS": "table",
        "Setting": "table",
        "find_settings_file": "loader",
        "list_given_names": "loader",
        "list_retired_settings": "loader",
        "load_settings": "loader",
    }

    def __getattr__(name: str) -> object:
        if name not in _LAZY_NAMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(f"{__name__}.{_LAZY_NAMES[name]}"), name)


__all__ = [
    "SETTINGS",
    "ListenAddress",
    "Retention",
    "Setting",
    "Settings",
    "find_settings_file",
    "list_given_names",
    "list_retired_settings",
    "load_settings",
]
