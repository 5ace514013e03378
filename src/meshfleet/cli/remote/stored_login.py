"""The login that commands go on with: where it is kept, and how.

It holds a token and never a password. The file is for its owner alone, and is replaced as a whole: who reads
it meanwhile finds the old one or the new one.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from tempfile import NamedTemporaryFile

import click
import msgspec
from msgspec import Struct
from msgspec.structs import replace


class StoredLogin(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Where somebody is logged in, and what opens the door there."""

    url: str
    user: str
    token: str
    tls_ca: str | None = None
    """The file with the authorities that vouch for the service."""

    def __repr__(self) -> str:
        return f"StoredLogin(url={self.url!r}, user={self.user!r}, token=…)"

    def __rich_repr__(self) -> list[tuple[str, str]]:
        return [("url", self.url), ("user", self.user)]


def login_file() -> Path:
    """Where the login is kept; a folder that is not absolute does not count, as XDG has it."""
    folder = Path(os.environ.get("XDG_CONFIG_HOME", ""))
    return (folder if folder.is_absolute() else Path.home() / ".config") / "meshfleet" / "login.json"


def read_login() -> StoredLogin | None:
    """Read the login; None: there is none."""
    file = login_file()
    try:
        return msgspec.json.decode(file.read_bytes(), type=StoredLogin)
    except FileNotFoundError:
        return None
    except OSError as exc:
        raise click.ClickException(f"{file} cannot be read: {exc.strerror}") from exc
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise click.ClickException(f"{file} is not a login: run meshfleet login") from None


def keep_login(login: StoredLogin) -> None:
    """Keep this login instead of any other."""
    file = login_file()
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        file.parent.chmod(0o700)
        _write(file, msgspec.json.format(msgspec.json.encode(login)) + b"\n")
    except OSError as exc:
        raise click.ClickException(f"the login cannot be kept in {file}: {exc.strerror}") from exc


def renew_login(known: StoredLogin, token: str) -> StoredLogin:
    """Keep a new token for a login, unless somebody logged out or in again meanwhile."""
    renewed = replace(known, token=token)
    if read_login() == known:
        keep_login(renewed)
    return renewed


def drop_login() -> None:
    """Forget the login, if there is one."""
    file = login_file()
    try:
        file.unlink(missing_ok=True)
    except OSError as exc:
        raise click.ClickException(f"{file} cannot be removed: {exc.strerror}") from exc


def _write(file: Path, content: bytes) -> None:
    # A temporary file is for its owner alone from the first moment.
    with NamedTemporaryFile(dir=file.parent, prefix=".login-", delete=False) as new:
        try:
            new.write(content)
            new.flush()
            os.fsync(new.fileno())
            Path(new.name).replace(file)
        except BaseException:
            with suppress(OSError):
                Path(new.name).unlink()
            raise
