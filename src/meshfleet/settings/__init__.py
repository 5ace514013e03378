"""The settings of the service.

model           what a service is told
limits          how much clients may ask of the broker
retention       how long samples are kept
table           all that can be set; flags, variables and the keys of the file follow from it
texts           what their texts mean
sources         who says something about them: flags, variables, a file
loading         all of it put together, or all mistakes

Who is told the settings needs no more than `model` and what it holds; the rest is imported when asked for.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Final

from meshfleet.settings.model import BrokerLimits, ListenAddress, Retention, Settings

if TYPE_CHECKING:
    from meshfleet.settings.loader import list_given_names, load_settings
    from meshfleet.settings.table import SETTINGS, Setting
else:
    _LAZY_NAMES: Final = {
        "SETTINGS": "table",
        "Setting": "table",
        "list_given_names": "loader",
        "load_settings": "loader",
    }

    def __getattr__(name: str) -> object:
        if name not in _LAZY_NAMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(f"{__name__}.{_LAZY_NAMES[name]}"), name)


__all__ = [
    "SETTINGS",
    "BrokerLimits",
    "ListenAddress",
    "Retention",
    "Setting",
    "Settings",
    "list_given_names",
    "load_settings",
]
