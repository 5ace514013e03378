"""The settings of the service.

`Settings` is what a service is told; `SETTINGS`, at the end, is the table from which flags, variables and the
keys of the file follow (rest-164, rest-165). All mistakes are told at once, and where each stands (rest-167).
Paths are seen from the working directory, also those in the file.
"""

from __future__ import annotations

import re
import ssl
import tomllib
from difflib import get_close_matches
from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_network
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import urlsplit

from msgspec import Struct

from meshfleet.errors import Fault, WrongSettings, plain, shown
from meshfleet.wire.rest import BrokerPlace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from urllib.parse import SplitResult


class Listen(NamedTuple):
    """Where connections are taken. Port 0 is any that is free."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Settings(Struct, frozen=True, kw_only=True):
    """How a service runs."""

    data: Path = Path("meshfleet-data")
    http: Listen = Listen("127.0.0.1", 8080)
    mqtt: Listen = Listen("127.0.0.1", 1883)
    public_url: str | None = None
    """Without a slash at its end."""
    public_mqtt: BrokerPlace | None = None
    database: str = "sqlite"
    """Or `postgresql://…`, perhaps with a password in it."""
    tls_cert: Path | None = None
    tls_key: Path | None = None
    trusted_proxies: tuple[IPv4Network | IPv6Network, ...] = ()

    @property
    def broker(self) -> BrokerPlace:
        """Where gateways are told to connect (rest-168)."""
        return self.public_mqtt or BrokerPlace(host=self.mqtt.host, port=self.mqtt.port, tls=False)

    def __repr__(self) -> str:
        return f"Settings({', '.join(f'{name}={value!r}' for name, value in self.__rich_repr__())})"

    def __rich_repr__(self) -> list[tuple[str, object]]:
        return [(each.field, each.shown(getattr(self, each.field))) for each in SETTINGS]


class Setting(NamedTuple):
    """Something that can be set, under the same name everywhere."""

    name: str
    """In lower case with hyphens; what stands in front of a dot is a table in the file."""
    read: Callable[[str], object]
    """Raises `_Unfit`."""
    form: str
    """What its text looks like, in a word."""
    help: str
    is_list: bool = False
    is_secret: bool = False

    @property
    def field(self) -> str:
        """Its name in `Settings`."""
        return re.sub("[.-]", "_", self.name)

    @property
    def flag(self) -> str:
        """Its name on the command line."""
        return f"--{self.name.replace('.', '-')}"

    @property
    def variable(self) -> str:
        """Its name in the environment."""
        return f"MESHFLEET_{self.field.upper()}"

    @property
    def default(self) -> object:
        """What holds when nobody says anything."""
        return getattr(_DEFAULTS, self.field)

    def shown(self, value: object) -> object:
        """A value as it may be seen in logs."""
        return "…" if self.is_secret and value != self.default else value


def load(flags: Mapping[str, str], variables: Mapping[str, str], *, file: Path | None = None) -> Settings:
    """Put together what flags, else variables, else a file say (rest-164).

    Flags go by the names of their settings. Without `file`, `meshfleet.toml` is read if there is one.
    An empty variable says nothing.
    """
    faults: list[Fault] = []
    given = _from_file(file, faults) | _from_variables(variables) | _from_flags(flags)
    faults += _misspelt(variables)
    values = _read(given, faults)
    faults += _tls_faults(given, values.get("tls_cert"), values.get("tls_key"))
    if faults:
        raise WrongSettings(faults)
    return Settings(**values)


def _read(given: Mapping[str, _Given], faults: list[Fault]) -> dict[str, Any]:
    values = {}
    for setting in SETTINGS:
        if setting.name in given:
            origin, raw = given[setting.name]
            try:
                values[setting.field] = setting.read(_text(setting, raw))
            except _Unfit as exc:
                faults.append(Fault(origin, str(exc)))
    return values


# --- Where they come from ---


class _Given(NamedTuple):
    """What somebody says about a setting, and where."""

    origin: str
    raw: object


class _Unfit(Exception):
    """Why a text cannot be the value of a setting."""


_FILE: Final = Path("meshfleet.toml")

_OTHER_VARIABLES: Final = {"MESHFLEET_ADMIN_PASSWORD", "MESHFLEET_BROKER", "MESHFLEET_PASSWORD"}
"""Which are read elsewhere."""


def _from_flags(flags: Mapping[str, str]) -> dict[str, _Given]:
    return {each.name: _Given(each.flag, flags[each.name]) for each in SETTINGS if each.name in flags}


def _from_variables(variables: Mapping[str, str]) -> dict[str, _Given]:
    return {
        each.name: _Given(each.variable, text) for each in SETTINGS if (text := variables.get(each.variable))
    }


def _misspelt(variables: Mapping[str, str]) -> Iterator[Fault]:
    """Variables that look like one of ours: who means another database must not get this one."""
    known = [each.variable for each in SETTINGS]
    for name in variables.keys() - {*known, *_OTHER_VARIABLES}:
        if name.startswith("MESHFLEET_") and (near := get_close_matches(name, known, n=1, cutoff=0.8)):
            yield Fault(name, f"there is no such setting; did you mean {near[0]}?")


def _from_file(file: Path | None, faults: list[Fault]) -> dict[str, _Given]:
    if file is None and not _FILE.exists():
        return {}
    path = file or _FILE
    try:
        found = dict(_flat(_content(path)))
    except _Unfit as exc:
        faults.append(Fault(str(path), str(exc)))
        return {}
    known = [each.name for each in SETTINGS]
    faults += [Fault(f"{path}: {plain(name)}", _unknown(name, known)) for name in found if name not in known]
    return {name: _Given(f"{path}: {name}", raw) for name, raw in found.items() if name in known}


def _content(path: Path) -> dict[str, object]:
    try:
        return tomllib.loads(path.read_bytes().decode("utf-8-sig"))  # some editors put a mark in front
    except OSError as exc:
        raise _Unfit(f"cannot be read: {exc.strerror}") from exc
    except ValueError as exc:
        raise _Unfit(f"is not TOML: {exc}") from exc


def _flat(table: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, object]]:
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _unknown(name: str, known: list[str]) -> str:
    near = get_close_matches(name.lower(), known, n=1)
    return f"there is no such setting; did you mean {near[0]}?" if near else "there is no such setting"


def _text(setting: Setting, raw: object) -> str:
    """A value of the file, as a flag would say it."""
    match raw:
        case str():
            return raw
        case list() if setting.is_list and all(isinstance(each, str) for each in raw):
            return ",".join(raw)
        case int() | float() if not isinstance(raw, bool):
            return str(raw)
    raise _Unfit(
        f"must be a text, or a list of texts: {setting.form}" if setting.is_list else "must be a text"
    )


# --- What their texts mean ---

_EXAMPLE: Final = (
    "a host and a port, such as 127.0.0.1:8080 or [::1]:8080; 0.0.0.0 and [::] are all addresses"
)
_LISTEN = re.compile(r"(\[.+\]|[^\[\]:]+):([0-9]{1,5})")
_NAME = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9._-]{0,252}[A-Za-z0-9_.])?")
_MAX_PORT: Final = 65535


def _listen(text: str) -> Listen:
    found = _LISTEN.fullmatch(text)
    if found is None or not _is_host(host := found[1]) or (port := int(found[2])) > _MAX_PORT:
        raise _Unfit(f"{shown(text)} is not {_EXAMPLE}")
    return Listen(host.strip("[]"), port)


def _is_host(text: str) -> bool:
    if not text.startswith("["):
        return _NAME.fullmatch(text) is not None
    try:
        IPv6Address(text.removeprefix("[").removesuffix("]"))
    except ValueError:
        return False
    return True


def _told(text: str) -> Listen:
    listen = _listen(text)
    if not listen.port:
        raise _Unfit("gateways cannot be told port 0; give the one that they are to connect to")
    return listen


def _path(text: str) -> Path:
    if not text or "\0" in text:
        raise _Unfit("is not a path")
    try:
        return Path(text).expanduser()
    except RuntimeError:
        raise _Unfit(f"{shown(text)} is in the home of a user that nobody knows") from None


def _readable(text: str) -> Path:
    path = _path(text)
    try:
        path.read_bytes()
    except OSError as exc:
        raise _Unfit(f"{path} cannot be read: {exc.strerror}") from exc
    return path


def _public_url(text: str) -> str:
    url = _url(text, ("http", "https"))
    return f"{url.scheme}://{url.netloc}{url.path.rstrip('/')}"


def _public_mqtt(text: str) -> BrokerPlace:
    url = _url(text, ("mqtt", "mqtts"))
    if url.path.strip("/"):
        raise _Unfit("has a path, which MQTT has not")
    tls = url.scheme == "mqtts"
    return BrokerPlace(host=url.hostname or "", port=url.port or (8883 if tls else 1883), tls=tls)


def _url(text: str, schemes: tuple[str, str]) -> SplitResult:
    """Take an address apart. It is never repeated: there may be a password in it, although there must not."""
    try:
        url = urlsplit(text)
        port = url.port
    except ValueError:
        raise _Unfit(f"is not a URL such as {schemes[0]}://host:port") from None
    if url.scheme not in schemes:
        raise _Unfit(f"must begin with {schemes[0]}:// or {schemes[1]}://")
    if not text.isprintable() or " " in text or "?" in text or "#" in text or "@" in text:
        raise _Unfit("must be an address alone: no user, no query, no spaces")
    if port == 0 or not _is_host(re.sub(r":[0-9]*$", "", url.netloc)):
        raise _Unfit("names no host, or one that cannot be")
    return url


_POSTGRESQL = re.compile(
    r"postgres(?:ql)?://(?P<rest>(?:[^@\s]*@)?(?:\[[0-9A-Fa-f:.]+\]|[^\[\]@:/?\s]*)(?::[0-9]{1,5})?(?:[/?]\S*)?)"
)


def _database(text: str) -> str:
    if text == "sqlite":
        return text
    found = _POSTGRESQL.fullmatch(text)
    if found is None:
        raise _Unfit("is neither sqlite nor a URL such as postgresql://user:password@host:5432/name")
    return f"postgresql://{found['rest']}"


def _networks(text: str) -> tuple[IPv4Network | IPv6Network, ...]:
    return tuple(_network(part) for each in text.split(",") if (part := each.strip()))


def _network(text: str) -> IPv4Network | IPv6Network:
    try:
        return ip_network(text)
    except ValueError:
        raise _Unfit(f"{shown(text)} is not an IP address or a network such as 10.0.0.0/8") from None


def _tls_faults(given: Mapping[str, _Given], certificate: Path | None, key: Path | None) -> Iterator[Fault]:
    """A certificate and its key come together, and belong together."""
    for one, other in (("tls-cert", "tls-key"), ("tls-key", "tls-cert")):
        if one in given and other not in given:
            yield Fault(given[one].origin, f"needs {other} too")
    if certificate is None or key is None:
        return
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, _password)
    except _Unfit as exc:
        yield Fault(given["tls-key"].origin, str(exc))
    except OSError as exc:
        why = getattr(exc, "reason", None) or "the files hold none"
        yield Fault(given["tls-cert"].origin, f"this is no certificate and its key in PEM: {why}")


def _password() -> str:
    """Do not let OpenSSL ask at the terminal: a service has none."""
    raise _Unfit("the key needs a password; use one without, which only we may read")


# --- The table ---

SETTINGS: Final = (
    Setting("data", _path, "DIR", "The data directory: database, images and secrets."),
    Setting("http", _listen, "HOST:PORT", "Where HTTP is served; port 0 is any that is free."),
    Setting("mqtt", _told, "HOST:PORT", "Where gateways are told to connect."),
    Setting("public-url", _public_url, "URL", "How others reach this service, if not by --http."),
    Setting(
        "public-mqtt", _public_mqtt, "URL", "How gateways reach the broker, if not by --mqtt: mqtt[s]://…"
    ),
    Setting("database", _database, "URL", "sqlite, in the data directory, or postgresql://…", is_secret=True),
    Setting(
        "tls-cert", _readable, "FILE", "Serve with this certificate and those that vouch for it, in PEM."
    ),
    Setting("tls-key", _readable, "FILE", "The key of the certificate, in PEM."),
    Setting(
        "trusted-proxies",
        _networks,
        "LIST",
        "Addresses and networks of proxies, with commas, whose word on the client's address counts.",
        is_list=True,
    ),
)

_DEFAULTS: Final = Settings()
