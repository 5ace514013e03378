"""Login file in the configuration directory of the user, which all commands share.

The file contains an access token, never a password. Only the owner can read the file. The file is replaced
atomically, so that concurrent commands read either the old or the new content.
"""

from __future__ import annotations

import os
import stat
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec
from msgspec import Struct
from msgspec.structs import replace

from meshfleet.cli.file_replacement import replace_file
from meshfleet.protocol.decoders import get_decoder

if TYPE_CHECKING:
    from collections.abc import Iterator


class StoredLogin(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Content of the login file: a service, a user and an access token."""

    url: str
    user: str
    token: str
    tls_ca: str | None = None
    """PEM file with the certificate authorities to trust; None for those of the system."""

    def __repr__(self) -> str:
        return f"StoredLogin(url={self.url!r}, user={self.user!r}, token=…)"

    def __rich_repr__(self) -> list[tuple[str, str]]:
        return [("url", self.url), ("user", self.user)]


def login_path() -> Path:
    """Return the path of the login file. A relative XDG_CONFIG_HOME is ignored, as XDG requires."""
    folder = Path(os.environ.get("XDG_CONFIG_HOME", ""))
    return (folder if folder.is_absolute() else Path.home() / ".config") / "meshfleet" / "login.json"


def read_login() -> StoredLogin | None:
    """Read the login file. Return None if it does not exist; raise `ClickException` if it is unreadable."""
    file = login_path()
    try:
        return get_decoder(StoredLogin).decode(_read_regular_file(file))
    except FileNotFoundError:
        return None
    except OSError as exc:
        raise click.ClickException(f"{file} cannot be read: {exc.strerror}") from exc
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise click.ClickException(f"{file} is not a valid login file: run meshfleet login") from None


def _read_regular_file(file: Path) -> bytes:
    """Read a file. Raise `ClickException` if it is not a regular file: reading a pipe could block forever."""
    if not stat.S_ISREG(file.stat().st_mode):
        raise click.ClickException(f"{file} is not a regular file")
    return file.read_bytes()


def check_login_private() -> None:
    """Raise `ClickException` if other users of this machine can access the login file."""
    file = login_path()
    try:
        foreign_access = file.stat().st_mode & 0o077
    except OSError:  # another command has just logged out
        return
    if os.name == "posix" and foreign_access:
        raise click.ClickException(f"other users can access {file}: run meshfleet login again")


def save_login(login: StoredLogin) -> None:
    """Write a login to the login file, and replace a login that is stored there."""
    file = login_path()
    try:
        # An existing directory, which may be a link, keeps its permissions.
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with _lock_folder(file.parent):
            _write_login(file, login)
    except OSError as exc:
        raise click.ClickException(f"the login cannot be saved to {file}: {exc.strerror}") from exc


def save_renewed_token(known: StoredLogin, token: str) -> StoredLogin:
    """Write a renewed access token to the login file. Return the login with the new token.

    The file is not changed if it no longer contains the login `known`, because another command changed it.
    """
    renewed, file = replace(known, token=token), login_path()
    try:
        with suppress(FileNotFoundError), _lock_folder(file.parent):
            if read_login() == known:
                _write_login(file, renewed)
    except OSError as exc:
        raise click.ClickException(f"the login cannot be saved to {file}: {exc.strerror}") from exc
    return renewed


def delete_login() -> None:
    """Delete the login file, if it exists."""
    file = login_path()
    try:
        with suppress(FileNotFoundError), _lock_folder(file.parent):
            file.unlink()
    except OSError as exc:
        raise click.ClickException(f"{file} cannot be deleted: {exc.strerror}") from exc


@contextmanager
def _lock_folder(folder: Path) -> Iterator[None]:
    """Hold an exclusive lock on the directory, so that no other command changes the login file."""
    try:
        import fcntl  # noqa: PLC0415 # missing on Windows, where there is no lock
    except ImportError:
        yield
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _write_login(file: Path, login: StoredLogin) -> None:
    replace_file(file, msgspec.json.format(msgspec.json.encode(login)) + b"\n")
