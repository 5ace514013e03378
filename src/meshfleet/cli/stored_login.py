"""The login that commands go on with: where it is kept, and how.

It holds a token and never a password. The file is for its owner alone, and is replaced as a whole: who reads
it meanwhile finds the old one or the new one.
"""

from __future__ import annotations

import os
import stat
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import TYPE_CHECKING

import click
import msgspec
from msgspec import Struct
from msgspec.structs import replace

from meshfleet.protocol.decoders import get_decoder

if TYPE_CHECKING:
    from collections.abc import Iterator


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


def login_path() -> Path:
    """Where the login is kept; a folder that is not absolute does not count, as XDG has it."""
    folder = Path(os.environ.get("XDG_CONFIG_HOME", ""))
    return (folder if folder.is_absolute() else Path.home() / ".config") / "meshfleet" / "login.json"


def read_login() -> StoredLogin | None:
    """Read the login; None: there is none."""
    file = login_path()
    try:
        return get_decoder(StoredLogin).decode(_read_regular_file(file))
    except FileNotFoundError:
        return None
    except OSError as exc:
        raise click.ClickException(f"{file} cannot be read: {exc.strerror}") from exc
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise click.ClickException(f"{file} is not a login: run meshfleet login") from None


def _read_regular_file(file: Path) -> bytes:
    """Of a regular file: nobody waits for what never comes, as from a pipe."""
    if not stat.S_ISREG(file.stat().st_mode):
        raise click.ClickException(f"{file} is not a file")
    return file.read_bytes()


def check_login_private() -> None:
    """Refuse a login that others on this machine can read, or change."""
    file = login_path()
    try:
        is_open = file.stat().st_mode & 0o077
    except OSError:  # somebody has just logged out
        return
    if os.name == "posix" and is_open:
        raise click.ClickException(f"{file} is open to others: run meshfleet login again")


def save_login(login: StoredLogin) -> None:
    """Keep this login instead of any other."""
    file = login_path()
    try:
        # One that is there already may be a link, and is as its owner wants it.
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with _lock_folder(file.parent):
            _write(file, login)
    except OSError as exc:
        raise click.ClickException(f"the login cannot be kept in {file}: {exc.strerror}") from exc


def save_renewed_token(known: StoredLogin, token: str) -> StoredLogin:
    """Keep a new token for a login, unless somebody logged out or in again meanwhile."""
    renewed, file = replace(known, token=token), login_path()
    try:
        with suppress(FileNotFoundError), _lock_folder(file.parent):
            if read_login() == known:
                _write(file, renewed)
    except OSError as exc:
        raise click.ClickException(f"the login cannot be kept in {file}: {exc.strerror}") from exc
    return renewed


def delete_login() -> None:
    """Forget the login, if there is one."""
    file = login_path()
    try:
        with suppress(FileNotFoundError), _lock_folder(file.parent):
            file.unlink()
    except OSError as exc:
        raise click.ClickException(f"{file} cannot be removed: {exc.strerror}") from exc


@contextmanager
def _lock_folder(folder: Path) -> Iterator[None]:
    """Let no other command change the login meanwhile."""
    try:
        import fcntl  # noqa: PLC0415 # not there on Windows, where two commands may still meet
    except ImportError:
        yield
        return
    held = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield
    finally:
        os.close(held)


def _write(file: Path, login: StoredLogin) -> None:
    content = msgspec.json.format(msgspec.json.encode(login)) + b"\n"
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
