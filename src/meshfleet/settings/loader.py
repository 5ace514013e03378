"""Settings put together, or all mistakes at once and where each stands (rest-167).

Paths are seen from the working directory, also those in the file.
"""

from __future__ import annotations

import logging
import ssl
import tomllib
from collections import defaultdict
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from meshfleet import tls
from meshfleet.errors import Fault, quote_name
from meshfleet.errors.mqtt import UnusableCertificate
from meshfleet.errors.startup import WrongSettings
from meshfleet.mqtt.broker_limits import BrokerLimits
from meshfleet.settings.model import Retention, Settings
from meshfleet.settings.parsers import InvalidSetting
from meshfleet.settings.table import SETTINGS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from meshfleet.mqtt.client.address import BrokerAddress
    from meshfleet.settings.table import Setting


# Who says something about settings: flags, variables, and a file (rest-164).

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


class RawSetting(NamedTuple):
    """What somebody says about a setting, and where."""

    origin: str
    raw: object

    def to_text(self, setting: Setting) -> str:
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
        raise InvalidSetting(
            f"must be a text, or a list of texts: {setting.metavar}"
            if setting.is_list
            else "must be a text or a number"
        )


def read_flags(flags: Mapping[str, str]) -> dict[str, RawSetting]:
    """What flags say, by the names of settings on both sides."""
    return {each.name: RawSetting(each.flag, flags[each.name]) for each in SETTINGS if each.name in flags}


def read_variables(variables: Mapping[str, str]) -> dict[str, RawSetting]:
    """What variables say; an empty one says nothing."""
    return {
        each.name: RawSetting(each.variable, text)
        for each in SETTINGS
        if (text := variables.get(each.variable))
    }


def find_misspelled_variables(variables: Mapping[str, str]) -> Iterator[Fault]:
    """Variables that look like one of ours: who means another database must not get this one."""
    known = [each.variable for each in SETTINGS]
    retired = {f"MESHFLEET_{name.upper().replace('.', '_').replace('-', '_')}": name for name in _RETIRED}
    for name in retired.keys() & variables.keys():
        _log.warning("%s is ignored: %s", name, _RETIRED[retired[name]])
    for name in variables.keys() - {*known, *_OTHER_VARIABLES, *retired}:
        if name.startswith("MESHFLEET_") and (near := get_close_matches(name, known, n=1, cutoff=0.8)):
            yield Fault(name, f"there is no such setting; did you mean {near[0]}?")


def read_file(file: Path | None, faults: list[Fault]) -> dict[str, RawSetting]:
    """What a file says, or `meshfleet.toml` if there is one; what is wrong with it is added to the faults."""
    if file is None and not _FILE.exists():
        return {}
    path = file or _FILE
    try:
        found = dict(_flatten(_parse_toml(path)))
    except InvalidSetting as exc:
        faults.append(Fault(str(path), str(exc)))
        return {}
    for name in _RETIRED.keys() & found.keys():
        _log.warning("%s: %s is ignored: %s", path, name, _RETIRED[name])
        del found[name]
    known = [each.name for each in SETTINGS]
    faults += [
        Fault(f"{path}: {quote_name(name)}", _explain_unknown(name, known))
        for name in found
        if name not in known
    ]
    return {name: RawSetting(f"{path}: {name}", raw) for name, raw in found.items() if name in known}


def _parse_toml(path: Path) -> dict[str, object]:
    try:
        return tomllib.loads(path.read_bytes().decode("utf-8-sig"))  # some editors put a mark in front
    except OSError as exc:
        raise InvalidSetting(f"cannot be read: {exc.strerror}") from exc
    except ValueError as exc:
        raise InvalidSetting(f"is not TOML: {exc}") from exc


def _flatten(table: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, object]]:
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _explain_unknown(name: str, known: list[str]) -> str:
    near = get_close_matches(name.lower(), known, n=1)
    return f"there is no such setting; did you mean {near[0]}?" if near else "there is no such setting"


def load_settings(
    flags: Mapping[str, str], variables: Mapping[str, str], *, file: Path | None = None
) -> Settings:
    """Put together what flags, else variables, else a file say (rest-164).

    Flags go by the names of their settings. Without `file`, `meshfleet.toml` is read if there is one.
    An empty variable says nothing.
    """
    faults: list[Fault] = []
    given = read_file(file, faults) | read_variables(variables) | read_flags(flags)
    faults += find_misspelled_variables(variables)
    values = _parse_values(given, faults)
    faults += _check_tls_complete(given, values)
    faults += _check_certificate(given, values.get("tls_cert"), values.get("tls_key"))
    faults += _check_broker_mode(given, values)
    faults += _check_broker_ca(given, values.get("broker_ca"))
    if faults:
        raise WrongSettings(faults)
    return _build_settings(values)


def list_given_names(
    flags: Mapping[str, str], variables: Mapping[str, str], *, file: Path | None = None
) -> frozenset[str]:
    """Collect the names of the settings that flags, variables or a file give; others have their defaults."""
    return frozenset(read_file(file, []) | read_variables(variables) | read_flags(flags))


def _parse_values(given: Mapping[str, RawSetting], faults: list[Fault]) -> dict[str, Any]:
    """The values, by their places."""
    values = {}
    for setting in SETTINGS:
        if (said := given.get(setting.name)) is not None:
            try:
                values[setting.attribute_path] = setting.parse(said.to_text(setting))
            except InvalidSetting as exc:
                faults.append(Fault(said.origin, str(exc)))
    return values


def _build_settings(values: Mapping[str, Any]) -> Settings:
    structs: defaultdict[str, dict[str, Any]] = defaultdict(dict)
    for place, value in values.items():
        struct, _, field = place.rpartition(".")
        structs[struct][field] = value
    if structs[""].get("external_broker") is not None:
        structs[""]["mqtt"] = None  # it would be on without a word
    return Settings(
        **structs[""], limits=BrokerLimits(**structs["limits"]), retention=Retention(**structs["retention"])
    )


# --- What goes together ---


def _check_tls_complete(given: Mapping[str, RawSetting], values: Mapping[str, Any]) -> Iterator[Fault]:
    """A certificate and its key come together, and MQTT over TLS with both."""
    for one, other in (("tls-cert", "tls-key"), ("tls-key", "tls-cert")):
        if one in given and other not in given:
            yield Fault(given[one].origin, f"needs {other} too")
    is_off = values.get("mqtt_tls", "unread") is None
    if "mqtt-tls" in given and not is_off and not {"tls-cert", "tls-key"} <= given.keys():
        yield Fault(given["mqtt-tls"].origin, "needs tls-cert and tls-key")


def _check_certificate(
    given: Mapping[str, RawSetting], certificate: Path | None, key: Path | None
) -> Iterator[Fault]:
    """A certificate and its key belong together."""
    if certificate is None or key is None:
        return
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, _refuse_password)
    except InvalidSetting as exc:
        yield Fault(given["tls-key"].origin, str(exc))
    except OSError as exc:
        why = getattr(exc, "reason", None) or "the files hold none"
        yield Fault(given["tls-cert"].origin, f"this is no certificate and its key in PEM: {why}")


def _check_broker_mode(given: Mapping[str, RawSetting], values: Mapping[str, Any]) -> Iterator[Fault]:
    """What is for the embedded broker alone is not said of another one, nor the other way round."""
    if "broker" in given and "external_broker" not in values:
        return  # which of both is meant is not known
    outside: BrokerAddress | None = values.get("external_broker")
    if outside is None and values.get("gateways_autoclaim"):
        why = "gateways log in to the embedded broker, so each is claimed; only with another one it can be on"
        yield Fault(given["gateways.autoclaim"].origin, why)
    if "broker_ca" in values and (outside is None or not outside.tls):
        yield Fault(given["broker-ca"].origin, "is only for a broker with mqtts://")
    for name, place in (("mqtt-tls", "mqtt_tls"), ("mqtt-ws", "mqtt_ws")):
        if outside is not None and values.get(place) is not None:
            why = "is for the embedded broker; with another one nobody listens there, so leave it out or off"
            yield Fault(given[name].origin, why)


def _check_broker_ca(given: Mapping[str, RawSetting], authorities: Path | None) -> Iterator[Fault]:
    """Whoever vouches for a broker must be somebody."""
    if authorities is None:
        return
    try:
        tls.create_tls_context(authorities=authorities)
    except UnusableCertificate as exc:
        yield Fault(given["broker-ca"].origin, f"{authorities} holds no certificates in PEM: {exc.reason}")


def _refuse_password() -> str:
    """Do not let OpenSSL ask at the terminal: a service has none."""
    raise InvalidSetting("the key needs a password; use one without, which only we may read")
