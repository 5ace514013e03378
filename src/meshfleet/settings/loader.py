"""Loads settings from flags, environment variables and files, and reports all faults together (rest-167).

Relative paths are relative to the working directory, also those in the file.
"""

from __future__ import annotations

import logging
import re
import ssl
import tomllib
from collections import defaultdict
from contextlib import suppress
from difflib import get_close_matches
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from meshfleet import tls
from meshfleet.errors import Fault, quote_name
from meshfleet.errors.mqtt import UnusableCertificate
from meshfleet.errors.startup import WrongSettings
from meshfleet.mqtt.broker_limits import BrokerLimits
from meshfleet.settings.model import (
    EMBEDDED,
    HomeAssistantSettings,
    InfluxSettings,
    MailSettings,
    Retention,
    Settings,
    WebhookSettings,
)
from meshfleet.settings.parsers import InvalidSetting
from meshfleet.settings.secret_files import (
    ADMIN_PASSWORD,
    list_credential_files,
    parse_secret_path,
    read_text_file,
)
from meshfleet.settings.table import SETTINGS

if TYPE_CHECKING:
    from collections.abc import Container, Iterator, Mapping

    from meshfleet.mqtt.client.address import BrokerAddress
    from meshfleet.settings.table import Setting


# --- Sources: flags, environment variables and a file (rest-164) ---

_log = logging.getLogger(__name__)

_DEFAULTS: Final = Settings()

_FILE: Final = Path("meshfleet.toml")

_ALL_NAMES: Final = frozenset(each.name for each in SETTINGS)

_OTHER_VARIABLES: Final = {
    "MESHFLEET_ADMIN_PASSWORD",
    "MESHFLEET_HOMEASSISTANT_PASSWORD",
    "MESHFLEET_KEY",
    "MESHFLEET_MESH",
    "MESHFLEET_PASSWORD",
    "MESHFLEET_PUBLIC_KEY",
    "MESHFLEET_TAB_SECONDS",
    "MESHFLEET_TLS_CA",
    "MESHFLEET_TOKEN",
    "MESHFLEET_URL",
}
"""Environment variables that are not settings and are read elsewhere."""

_RETIRED: Final = {
    "limits.queue-length": "queues of MQTT clients are limited in bytes, by limits.queue-bytes",
}
"""Settings of earlier versions that are now ignored with a warning, and the reason."""


class _RawSetting(NamedTuple):
    """Value of a setting before parsing."""

    origin: str
    """Flag, environment variable or file and key, for error messages."""
    raw: object

    def to_text(self, setting: Setting) -> str:
        """Convert the value to the text that a flag would have. Raise `InvalidSetting` for a wrong type."""
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
            f"must be a string or a list of strings: {setting.metavar}"
            if setting.is_list
            else "must be a string or a number"
        )


def _read_sources(
    flags: Mapping[str, str],
    variables: Mapping[str, str],
    file: Path | None,
    faults: list[Fault],
    names: Container[str] = _ALL_NAMES,
) -> dict[str, _RawSetting]:
    """Return the given settings in `names`, by name. Append the faults of files to `faults`."""
    given = _read_file(file, faults, names)
    given |= _read_credentials(variables, faults, names)
    for each in SETTINGS:
        if each.name not in names:
            continue
        if each.is_secret and (path := variables.get(each.file_variable)):
            _read_secret_file(given, each, _RawSetting(each.file_variable, path), faults)
            if variables.get(each.variable):
                faults.append(Fault(each.file_variable, f"is set, and so is {each.variable}: set only one"))
        if text := variables.get(each.variable):
            given[each.name] = _RawSetting(each.variable, text)
        if each.name in flags:
            given[each.name] = _RawSetting(each.flag, flags[each.name])
    return given


def _read_secret_file(
    given: dict[str, _RawSetting], setting: Setting, path: _RawSetting, faults: list[Fault]
) -> None:
    """Read the value of a secret setting from the file at `path`, and add it to `given`.

    If the file cannot be read, add a fault to `faults`.
    """
    try:
        text = read_text_file(parse_secret_path(path.to_text(setting)))
    except InvalidSetting as exc:
        faults.append(Fault(path.origin, str(exc)))
    else:
        given[setting.name] = _RawSetting(path.origin, text)


def _read_credentials(
    variables: Mapping[str, str], faults: list[Fault], names: Container[str]
) -> dict[str, _RawSetting]:
    """Return the settings whose values are systemd credentials.

    The value of a setting for a file is the path of the credential; of any other, the text in the credential.
    """
    given: dict[str, _RawSetting] = {}
    by_name = {each.name: each for each in SETTINGS}
    try:
        credentials = list_credential_files(variables)
    except InvalidSetting as exc:
        faults.append(Fault("CREDENTIALS_DIRECTORY", str(exc)))
        return given
    for name, path in credentials.items():
        if name in by_name:
            if name not in names:
                continue
            file = _RawSetting(f"credential {path.name}", str(path))
            if by_name[name].is_file:
                given[name] = file
            else:
                _read_secret_file(given, by_name[name], file, faults)
        elif name != ADMIN_PASSWORD:
            origin = f"credential {quote_name(path.name)}"
            faults.append(Fault(origin, _explain_unknown(name, [*by_name, ADMIN_PASSWORD])))
    return given


def _find_misspelled_variables(variables: Mapping[str, str]) -> Iterator[Fault]:
    """Yield a fault for each environment variable whose name is similar to that of a setting.

    A misspelled variable must not be ignored: the service could open the wrong database, for example.
    """
    known = [each.variable for each in SETTINGS]
    known += [each.file_variable for each in SETTINGS if each.is_secret]
    for name in variables.keys() - {*known, *_OTHER_VARIABLES, *map(_build_retired_variable, _RETIRED)}:
        if name.startswith("MESHFLEET_") and (near := get_close_matches(name, known, n=1, cutoff=0.8)):
            yield Fault(name, f"unknown setting; did you mean {near[0]}?")


def _read_file(file: Path | None, faults: list[Fault], names: Container[str]) -> dict[str, _RawSetting]:
    """Return the settings in `names` that the settings file gives. Append the faults of the file to `faults`.

    An unknown setting is a fault. Files with the values of settings that are not in `names` are not read.
    """
    if (path := find_settings_file(file)) is None:
        return {}
    try:
        found = dict(_flatten(_parse_toml(path)))
    except InvalidSetting as exc:
        faults.append(Fault(str(path), str(exc)))
        return {}
    given = {name: _RawSetting(f"{path}: {name}", raw) for name, raw in found.items() if name not in _RETIRED}
    for each in SETTINGS:
        secret = given.pop(each.file_key, None) if each.is_secret else None
        if secret is not None and each.name in names:
            if each.name in given:
                faults.append(Fault(secret.origin, f"is set, and so is {each.name}: set only one"))
            _read_secret_file(given, each, secret, faults)
    known = [each.name for each in SETTINGS]
    faults += [
        Fault(f"{path}: {quote_name(name)}", _explain_unknown(name, known))
        for name in given
        if name not in known
    ]
    return {name: raw for name, raw in given.items() if name in known and name in names}


def find_settings_file(file: Path | None) -> Path | None:
    """Return the settings file that is read: `file`, else `meshfleet.toml` if it exists, else None."""
    try:
        return file or (_FILE if _FILE.exists() else None)
    except OSError:  # the directory is not accessible: that the file cannot be read is then reported
        return _FILE.absolute()


def list_retired_settings(variables: Mapping[str, str], *, file: Path | None = None) -> list[Fault]:
    """Return the variables and file keys of earlier versions that are ignored now, and what replaces them.

    A file that cannot be read is ignored here; `load_settings` reports it.
    """
    found = [Fault(_build_retired_variable(name), text) for name, text in _RETIRED.items()]
    found = [each for each in found if each.field in variables]
    path = find_settings_file(file)
    with suppress(InvalidSetting):
        names = {} if path is None else dict(_flatten(_parse_toml(path)))
        found += [Fault(f"{path}: {name}", text) for name, text in _RETIRED.items() if name in names]
    return found


def _build_retired_variable(name: str) -> str:
    """Return the name that the environment variable of a retired setting had."""
    return f"MESHFLEET_{re.sub('[.-]', '_', name).upper()}"


def _parse_toml(path: Path) -> dict[str, object]:
    try:
        return tomllib.loads(path.read_bytes().decode("utf-8-sig"))  # some editors write a byte order mark
    except OSError as exc:
        raise InvalidSetting(f"cannot be read: {exc.strerror}") from exc
    except ValueError as exc:
        raise InvalidSetting(f"is not valid TOML: {exc}") from exc


def _flatten(table: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, object]]:
    """Yield each value in nested TOML tables, with its keys joined by dots."""
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _explain_unknown(name: str, known: list[str]) -> str:
    near = get_close_matches(name.lower(), known, n=1)
    return f"unknown setting; did you mean {near[0]}?" if near else "unknown setting"


def load_settings(
    flags: Mapping[str, str],
    variables: Mapping[str, str],
    *,
    file: Path | None = None,
    names: Container[str] = _ALL_NAMES,
) -> Settings:
    """Load the settings: flags take precedence over variables, and variables over the file (rest-164).

    Credentials of systemd come between variables and the file. `flags` has the names of settings as keys.
    Empty variables are ignored. If `file` is None, read `meshfleet.toml` in the working directory if it
    exists. Load only the settings in `names`: all others get their defaults, and may be wrong or unreadable
    for this user. Raise `WrongSettings` with all faults.
    """
    faults: list[Fault] = []
    given = _read_sources(flags, variables, file, faults, names)
    faults += _find_misspelled_variables(variables)
    values = _parse_values(given, faults)
    faults += _check_tls_complete(given, values)
    faults += _check_certificate(given, values.get("tls_cert"), values.get("tls_key"))
    faults += _check_broker_mode(given, values)
    for name in ("broker-ca", "homeassistant.broker-ca", "influx.ca", "mail.ca", "webhooks.ca"):
        faults += _check_authorities(given, name, values.get(name.replace("-", "_")))
    faults += _check_homeassistant(given, values)
    faults += _check_influx(given, values)
    faults += _check_mail(given, values)
    for each in list_retired_settings(variables, file=file):
        _log.warning("%s is ignored: %s", *each)
    if faults:
        raise WrongSettings(faults)
    return _build_settings(values)


def list_given_names(
    flags: Mapping[str, str], variables: Mapping[str, str], *, file: Path | None = None
) -> frozenset[str]:
    """Return the names of the settings given by flags, variables or a file. All others have defaults."""
    return frozenset(_read_sources(flags, variables, file, []))


def _parse_values(given: Mapping[str, _RawSetting], faults: list[Fault]) -> dict[str, Any]:
    """Parse the given settings. Return their values by `Setting.attribute_path`; add faults to `faults`."""
    values = {}
    for setting in SETTINGS:
        if (raw := given.get(setting.name)) is not None:
            try:
                values[setting.attribute_path] = setting.parse(raw.to_text(setting))
            except InvalidSetting as exc:
                faults.append(Fault(raw.origin, str(exc)))
    return values


def _build_settings(values: Mapping[str, Any]) -> Settings:
    structs: defaultdict[str, dict[str, Any]] = defaultdict(dict)
    for path, value in values.items():
        struct, _, field = path.rpartition(".")
        structs[struct][field] = value
    if structs[""].get("external_broker") is not None:
        structs[""]["mqtt"] = None  # its default would start the embedded broker
    return Settings(
        **structs[""],
        limits=BrokerLimits(**structs["limits"]),
        retention=Retention(**structs["retention"]),
        influx=InfluxSettings(**structs["influx"]),
        homeassistant=HomeAssistantSettings(**structs["homeassistant"]),
        mail=MailSettings(**structs["mail"]),
        webhooks=WebhookSettings(**structs["webhooks"]),
    )


# --- Checks across settings ---


def _check_tls_complete(given: Mapping[str, _RawSetting], values: Mapping[str, Any]) -> Iterator[Fault]:
    """Yield a fault if only one of certificate and key is given, or MQTT over TLS is on without them."""
    for one, other in (("tls-cert", "tls-key"), ("tls-key", "tls-cert")):
        if one in given and other not in given:
            yield Fault(given[one].origin, f"also needs {other}")
    is_off = values.get("mqtt_tls", "unread") is None
    if "mqtt-tls" in given and not is_off and not {"tls-cert", "tls-key"} <= given.keys():
        yield Fault(given["mqtt-tls"].origin, "needs tls-cert and tls-key")


def _check_certificate(
    given: Mapping[str, _RawSetting], certificate: Path | None, key: Path | None
) -> Iterator[Fault]:
    """Yield a fault if the certificate and key cannot be loaded or do not match."""
    if certificate is None or key is None:
        return
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, _refuse_password)
    except InvalidSetting as exc:
        yield Fault(given["tls-key"].origin, str(exc))
    except OSError as exc:
        reason = getattr(exc, "reason", None) or "the files contain none"
        yield Fault(
            given["tls-cert"].origin,
            f"{certificate} is not a certificate in PEM with its key in {key}: {reason}",
        )


def _check_broker_mode(given: Mapping[str, _RawSetting], values: Mapping[str, Any]) -> Iterator[Fault]:
    """Yield a fault for each setting that does not apply to the kind of broker in use."""
    if "broker" in given and "external_broker" not in values:
        return  # the setting is invalid, so the mode is not known
    external: BrokerAddress | None = values.get("external_broker")
    if external is None and values.get("gateways_autoclaim"):
        reason = "can be on only with an external broker: on the embedded one gateways must be claimed"
        yield Fault(given["gateways.autoclaim"].origin, reason)
    if "broker_ca" in values and (external is None or not external.tls):
        yield Fault(given["broker-ca"].origin, "is only for an external broker with mqtts://")
    for name, path in (("mqtt-tls", "mqtt_tls"), ("mqtt-ws", "mqtt_ws")):
        if external is not None and values.get(path) is not None:
            reason = "is for the embedded broker only: with an external broker, omit it or set it to off"
            yield Fault(given[name].origin, reason)


def _check_homeassistant(given: Mapping[str, _RawSetting], values: Mapping[str, Any]) -> Iterator[Fault]:
    """Yield a fault for settings of Home Assistant that do not fit its broker or that of the service."""
    broker = values.get("homeassistant.broker")
    if broker == EMBEDDED and values.get("external_broker") is not None:
        reason = "cannot be embedded: the service uses an external broker; write the URL of that broker"
        yield Fault(given["homeassistant.broker"].origin, reason)
    if "homeassistant.broker_ca" in values and (broker in {None, EMBEDDED} or not broker.tls):
        reason = "is only for a broker of Home Assistant with mqtts:// or wss://"
        yield Fault(given["homeassistant.broker-ca"].origin, reason)
    if broker is None:
        return
    # Else an account for the topics of Home Assistant could read the requests of gateways, with their keys.
    prefix = values.get("topic_prefix", _DEFAULTS.topic_prefix)
    fleet_topics = (f"{prefix}/mt/" if prefix else "mt/", "meshtech/")
    for name in ("homeassistant.topic", "homeassistant.discovery-prefix"):
        path = name.replace("-", "_")
        topic = values.get(path) or attrgetter(path)(_DEFAULTS)
        if any(f"{topic}/".startswith(fleet) or fleet.startswith(f"{topic}/") for fleet in fleet_topics):
            origin = given.get(name, given["homeassistant.broker"]).origin
            yield Fault(origin, f"{name} cannot be {topic}: the topics of gateways are there")


def _check_influx(given: Mapping[str, _RawSetting], values: Mapping[str, Any]) -> Iterator[Fault]:
    """Yield a fault if there are certificate authorities for a server of InfluxDB without TLS."""
    if "influx.url" in given and "influx.url" not in values:
        return  # the URL is invalid
    if "influx.ca" in values and not values.get("influx.url", "").startswith("https:"):
        yield Fault(given["influx.ca"].origin, "is only for an influx.url with https://")


def _check_mail(given: Mapping[str, _RawSetting], values: Mapping[str, Any]) -> Iterator[Fault]:
    """Yield a fault for settings of the mail server that lack others, or have no effect."""
    for name, other in (
        ("mail.host", "mail.from"),
        ("mail.user", "mail.password"),
        ("mail.password", "mail.user"),
    ):
        if name in given and other not in given:
            yield Fault(given[name].origin, f"also needs {other}")
    if "mail.ca" in values and values.get("mail.tls") == "off":
        yield Fault(given["mail.ca"].origin, "has no effect: mail.tls is off")


def _check_authorities(
    given: Mapping[str, _RawSetting], name: str, authorities: Path | None
) -> Iterator[Fault]:
    """Yield a fault if the file of certificate authorities contains no valid certificates."""
    if authorities is None:
        return
    try:
        tls.create_tls_context(authorities=authorities)
    except UnusableCertificate as exc:
        yield Fault(given[name].origin, f"{authorities} contains no certificates in PEM: {exc.reason}")


def _refuse_password() -> str:
    """Raise `InvalidSetting` when OpenSSL asks for the password of the private key.

    Otherwise OpenSSL would prompt at the terminal, and a service has none.
    """
    raise InvalidSetting("the key has a password; use a key without one that only the service can read")
