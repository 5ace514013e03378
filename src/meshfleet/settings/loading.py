"""Settings put together, or all mistakes at once and where each stands (rest-167).

Paths are seen from the working directory, also those in the file.
"""

from __future__ import annotations

import ssl
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from meshfleet.errors import Fault, UnusableCertificate, WrongSettings
from meshfleet.link import tls
from meshfleet.settings.limits import Limits
from meshfleet.settings.model import Settings
from meshfleet.settings.retention import Retention
from meshfleet.settings.sources import Given, from_file, from_flags, from_variables, misspelt
from meshfleet.settings.table import SETTINGS
from meshfleet.settings.texts import Unfit

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from meshfleet.link.address import Address


def load(flags: Mapping[str, str], variables: Mapping[str, str], *, file: Path | None = None) -> Settings:
    """Put together what flags, else variables, else a file say (rest-164).

    Flags go by the names of their settings. Without `file`, `meshfleet.toml` is read if there is one.
    An empty variable says nothing.
    """
    faults: list[Fault] = []
    given = from_file(file, faults) | from_variables(variables) | from_flags(flags)
    faults += misspelt(variables)
    values = _read(given, faults)
    faults += _incomplete(given, values)
    faults += _unusable(given, values.get("tls_cert"), values.get("tls_key"))
    faults += _misplaced(given, values)
    faults += _untrusting(given, values.get("broker_ca"))
    if faults:
        raise WrongSettings(faults)
    return _settings(values)


def names_given(
    flags: Mapping[str, str], variables: Mapping[str, str], *, file: Path | None = None
) -> frozenset[str]:
    """Collect the names of the settings that flags, variables or a file give; others have their defaults."""
    return frozenset(from_file(file, []) | from_variables(variables) | from_flags(flags))


def _read(given: Mapping[str, Given], faults: list[Fault]) -> dict[str, Any]:
    """The values, by their places."""
    values = {}
    for setting in SETTINGS:
        if (said := given.get(setting.name)) is not None:
            try:
                values[setting.place] = setting.read(said.text(setting))
            except Unfit as exc:
                faults.append(Fault(said.origin, str(exc)))
    return values


def _settings(values: Mapping[str, Any]) -> Settings:
    structs: defaultdict[str, dict[str, Any]] = defaultdict(dict)
    for place, value in values.items():
        struct, _, field = place.rpartition(".")
        structs[struct][field] = value
    if structs[""].get("outside") is not None:
        structs[""]["mqtt"] = None  # it would be on without a word
    return Settings(
        **structs[""], limits=Limits(**structs["limits"]), retention=Retention(**structs["retention"])
    )


# --- What goes together ---


def _incomplete(given: Mapping[str, Given], values: Mapping[str, Any]) -> Iterator[Fault]:
    """A certificate and its key come together, and MQTT over TLS with both."""
    for one, other in (("tls-cert", "tls-key"), ("tls-key", "tls-cert")):
        if one in given and other not in given:
            yield Fault(given[one].origin, f"needs {other} too")
    is_off = values.get("mqtt_tls", "unread") is None
    if "mqtt-tls" in given and not is_off and not {"tls-cert", "tls-key"} <= given.keys():
        yield Fault(given["mqtt-tls"].origin, "needs tls-cert and tls-key")


def _unusable(given: Mapping[str, Given], certificate: Path | None, key: Path | None) -> Iterator[Fault]:
    """A certificate and its key belong together."""
    if certificate is None or key is None:
        return
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, _password)
    except Unfit as exc:
        yield Fault(given["tls-key"].origin, str(exc))
    except OSError as exc:
        why = getattr(exc, "reason", None) or "the files hold none"
        yield Fault(given["tls-cert"].origin, f"this is no certificate and its key in PEM: {why}")


def _misplaced(given: Mapping[str, Given], values: Mapping[str, Any]) -> Iterator[Fault]:
    """What is for the embedded broker alone is not said of another one, nor the other way round."""
    if "broker" in given and "outside" not in values:
        return  # which of both is meant is not known
    outside: Address | None = values.get("outside")
    if outside is None and values.get("gateways_autoclaim"):
        why = "gateways log in to the embedded broker, so each is claimed; only with another one it can be on"
        yield Fault(given["gateways.autoclaim"].origin, why)
    if "broker_ca" in values and (outside is None or not outside.tls):
        yield Fault(given["broker-ca"].origin, "is only for a broker with mqtts://")
    for name, place in (("mqtt-tls", "mqtt_tls"), ("mqtt-ws", "mqtt_ws")):
        if outside is not None and values.get(place) is not None:
            why = "is for the embedded broker; with another one nobody listens there, so leave it out or off"
            yield Fault(given[name].origin, why)


def _untrusting(given: Mapping[str, Given], authorities: Path | None) -> Iterator[Fault]:
    """Whoever vouches for a broker must be somebody."""
    if authorities is None:
        return
    try:
        tls.context(authorities=authorities)
    except UnusableCertificate as exc:
        yield Fault(given["broker-ca"].origin, f"{authorities} holds no certificates in PEM: {exc.reason}")


def _password() -> str:
    """Do not let OpenSSL ask at the terminal: a service has none."""
    raise Unfit("the key needs a password; use one without, which only we may read")
