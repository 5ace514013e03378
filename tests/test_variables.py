"""Settings in the environment: what is nearly one of them was meant to be one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from meshfleet.errors import WrongSettings
from meshfleet.settings import load

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A working directory in which no file of settings lies."""
    monkeypatch.chdir(tmp_path)


@pytest.mark.rule("rest-167")
@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("MESHFLEET_DATBASE", "MESHFLEET_DATABASE"),
        ("MESHFLEET_TLS_CERTS", "MESHFLEET_TLS_CERT"),
        ("MESHFLEET_TRUSTED_PROXY", "MESHFLEET_TRUSTED_PROXIES"),
    ],
)
def test_a_misspelt_variable_is_told(name: str, meant: str) -> None:
    with pytest.raises(WrongSettings) as raised:
        load({}, {name: "postgresql://somebody:secret@host/name"})
    assert str(raised.value) == f"{name}: there is no such setting; did you mean {meant}?"


@pytest.mark.parametrize(
    "name",
    ["MESHFLEET_ADMIN_PASSWORD", "MESHFLEET_BROKER", "MESHFLEET_PASSWORD", "MESHFLEET_FLAVOUR", "DATABASE"],
)
def test_variables_of_others_are_left_alone(name: str) -> None:
    assert load({}, {name: "anything"}) == load({}, {})
