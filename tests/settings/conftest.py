"""Fixtures for tests of settings: a working directory and certificates."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trustme

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Change to a working directory without a settings file."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def pem(folder: Path) -> Mapping[str, str]:
    """Write files with a certificate, its key, and another key, and return their paths by name."""
    authority = trustme.CA()
    certificate, other = authority.issue_cert("localhost"), authority.issue_cert("localhost")
    certificate.cert_chain_pems[0].write_to_path(folder / "cert.pem")
    certificate.private_key_pem.write_to_path(folder / "key.pem")
    other.private_key_pem.write_to_path(folder / "other.pem")
    return {name: str(folder / f"{name}.pem") for name in ("cert", "key", "other")}
