"""Where settings are read in tests, and certificates for them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trustme

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, in which no file of settings lies."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def pem(folder: Path) -> Mapping[str, str]:
    """Files with a certificate, its key, and another key."""
    authority = trustme.CA()
    mine, other = authority.issue_cert("localhost"), authority.issue_cert("localhost")
    mine.cert_chain_pems[0].write_to_path(folder / "cert.pem")
    mine.private_key_pem.write_to_path(folder / "key.pem")
    other.private_key_pem.write_to_path(folder / "other.pem")
    return {name: str(folder / f"{name}.pem") for name in ("cert", "key", "other")}
