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

from meshfleet.settings.limits import Limits
from meshfleet.settings.model import Listen, Settings
from meshfleet.settings.retention import Retention

if TYPE_CHECKING:
    from meshfleet.settings.loading import load, names_given
    from meshfleet.settings.table import SETTINGS, Setting
else:
    _LATER: Final = {"SETTINGS": "table", "Setting": "table", "load": "loading", "names_given": "loading"}

    def __getattr__(name: str) -> object:
        if name not in _LATER:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(f"{__name__}.{_LATER[name]}"), name)


__all__ = ["SETTINGS", "Limits", "Listen", "Retention", "Setting", "Settings", "load", "names_given"]
