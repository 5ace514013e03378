"""Who says something about settings: flags, variables, and a file (rest-164)."""

from __future__ import annotations

import logging
import tomllib
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from meshfleet.errors import Fault, plain
from meshfleet.settings.table import SETTINGS
from meshfleet.settings.texts import Unfit

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from meshfleet.settings.table import Setting

_log = logging.getLogger(__name__)

_FILE: Final = Path("meshfleet.toml")

_OTHER_VARIABLES: Final = {
    "MESHFLEET_ADMIN_PASSWORD",
    "MESHFLEET_KEY",
    "MESHFLEET_MESH",
    "MESHFLEET_PASSWORD",
    "MESHFLEET_PUBLIC_KEY",
    "MESHFLEET_TAB_SECONDS",
    "MESHFLEET_TLS_CA",
    "MESHFLEET_TOKEN",
    "MESHFLEET_URL",
}
"""Which are read elsewhere."""

_RETIRED: Final = {
    "limits.queue-length": "queues of MQTT clients are limited in bytes now, by limits.queue-bytes",
}
"""Settings of earlier versions that mean nothing any more. A file or variable that has one still works."""


class Given(NamedTuple):
    """What somebody says about a setting, and where."""

    origin: str
    raw: object

    def text(self, setting: Setting) -> str:
        """As a flag would say it; raises `Unfit`."""
        match self.raw:
            case str() as text:
                return text
            case list() as texts if setting.is_list and all(isinstance(each, str) for each in texts):
                return ",".join(texts)
            case bool() as is_on if setting.is_switch:
                return "on" if is_on else "off"
            case int() | float() as number if not isinstance(number, bool):
                return str(number)
        raise Unfit(
            f"must be a text, or a list of texts: {setting.form}"
            if setting.is_list
            else "must be a text or a number"
        )


def from_flags(flags: Mapping[str, str]) -> dict[str, Given]:
    """What flags say, by the names of settings on both sides."""
    return {each.name: Given(each.flag, flags[each.name]) for each in SETTINGS if each.name in flags}


def from_variables(variables: Mapping[str, str]) -> dict[str, Given]:
    """What variables say; an empty one says nothing."""
    return {
        each.name: Given(each.variable, text) for each in SETTINGS if (text := variables.get(each.variable))
    }


def misspelt(variables: Mapping[str, str]) -> Iterator[Fault]:
    """Variables that look like one of ours: who means another database must not get this one."""
    known = [each.variable for each in SETTINGS]
    retired = {f"MESHFLEET_{name.upper().replace('.', '_').replace('-', '_')}": name for name in _RETIRED}
    for name in retired.keys() & variables.keys():
        _log.warning("%s is ignored: %s", name, _RETIRED[retired[name]])
    for name in variables.keys() - {*known, *_OTHER_VARIABLES, *retired}:
        if name.startswith("MESHFLEET_") and (near := get_close_matches(name, known, n=1, cutoff=0.8)):
            yield Fault(name, f"there is no such setting; did you mean {near[0]}?")


def from_file(file: Path | None, faults: list[Fault]) -> dict[str, Given]:
    """What a file says, or `meshfleet.toml` if there is one; what is wrong with it is added to the faults."""
    if file is None and not _FILE.exists():
        return {}
    path = file or _FILE
    try:
        found = dict(_flat(_content(path)))
    except Unfit as exc:
        faults.append(Fault(str(path), str(exc)))
        return {}
    for name in _RETIRED.keys() & found.keys():
        _log.warning("%s: %s is ignored: %s", path, name, _RETIRED[name])
        del found[name]
    known = [each.name for each in SETTINGS]
    faults += [Fault(f"{path}: {plain(name)}", _unknown(name, known)) for name in found if name not in known]
    return {name: Given(f"{path}: {name}", raw) for name, raw in found.items() if name in known}


def _content(path: Path) -> dict[str, object]:
    try:
        return tomllib.loads(path.read_bytes().decode("utf-8-sig"))  # some editors put a mark in front
    except OSError as exc:
        raise Unfit(f"cannot be read: {exc.strerror}") from exc
    except ValueError as exc:
        raise Unfit(f"is not TOML: {exc}") from exc


def _flat(table: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, object]]:
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _unknown(name: str, known: list[str]) -> str:
    near = get_close_matches(name.lower(), known, n=1)
    return f"there is no such setting; did you mean {near[0]}?" if near else "there is no such setting"
