"""Settings in files of their own: credentials of systemd, and files that keys such as `database-file` name.

A file holds the text of one setting. Errors name the path of the file, never its content.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from meshfleet.errors import Fault
from meshfleet.errors.startup import WrongSettings
from meshfleet.settings.parsers import InvalidSetting, parse_path

if TYPE_CHECKING:
    from collections.abc import Mapping

ADMIN_PASSWORD: Final = "admin-password"  # noqa: S105 # the name of a credential, not a password
"""Name of the credential with the password of the first user, which is not a setting."""

_MAX_BYTES: Final = 64 * 1024
"""Maximum size of a file: no setting is longer, and a wrong path may name a file of any size."""

_PREFIX: Final = "meshfleet."


def parse_secret_path(text: str) -> Path:
    """Parse the path of a file with a secret. Reject a URL, which an error would print with its password."""
    if "://" in text:
        raise InvalidSetting("must be the path of a file that contains the URL, not the URL itself")
    return parse_path(text)


def read_text_file(path: Path) -> str:
    """Return the text of a file without line breaks at the end. Raise `InvalidSetting` if unusable."""
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_BYTES + 1)
    except OSError as exc:
        raise InvalidSetting(f"{path} cannot be read: {exc.strerror}") from exc
    if len(content) > _MAX_BYTES:
        raise InvalidSetting(f"{path} is larger than {_MAX_BYTES} bytes")
    try:
        text = content.decode().rstrip("\r\n")
    except UnicodeDecodeError:
        raise InvalidSetting(f"{path} is not UTF-8 text") from None  # the cause would contain the secret
    if not text:
        raise InvalidSetting(f"{path} is empty")
    return text


def list_credential_files(variables: Mapping[str, str]) -> dict[str, Path]:
    """Return the files `meshfleet.NAME` in `$CREDENTIALS_DIRECTORY` of systemd, by NAME.

    Raise `InvalidSetting` if the directory cannot be read.
    """
    if not (directory := variables.get("CREDENTIALS_DIRECTORY")):
        return {}
    try:
        paths = sorted(Path(directory).iterdir())
    except OSError as exc:
        raise InvalidSetting(f"{directory} cannot be read: {exc.strerror}") from exc
    return {path.name.removeprefix(_PREFIX): path for path in paths if path.name.startswith(_PREFIX)}


def read_credential(name: str, variables: Mapping[str, str]) -> str | None:
    """Return the text of a systemd credential; None if there is none. Raise `WrongSettings` if unreadable."""
    try:
        path = list_credential_files(variables).get(name)
        return None if path is None else read_text_file(path)
    except InvalidSetting as exc:
        raise WrongSettings([Fault(f"credential {_PREFIX}{name}", str(exc))]) from exc
