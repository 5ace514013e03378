"""Variants of gateways, and marks for tests that depend on them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterable


class Variant(NamedTuple):
    """Mode and API version of a gateway."""

    mode: str
    version: str

    def __str__(self) -> str:
        return f"{self.mode}-{self.version}"


VARIANTS: Final = [
    Variant(mode, version) for mode in ("raw", "decoded") for version in ("1.2.0", "2.1.0", "2.4.0")
]
NEWEST: Final = Variant("raw", "2.4.0")
DECODED: Final = Variant("decoded", "2.4.0")
OLDEST: Final = Variant("raw", "1.2.0")


def run_at(*quick_variants: Variant, of: Iterable[Variant] = VARIANTS) -> pytest.MarkDecorator:
    """Run a test at these variants in `make test`, and at the others of `of` in the part `variants`."""
    mark: pytest.MarkDecorator = pytest.mark.variants
    return mark(quick_variants, list(of))


def differs_by_mode() -> pytest.MarkDecorator:
    """Run a test in both modes: its outcome depends on the mode."""
    return run_at(NEWEST, DECODED)


def differs_by_version() -> pytest.MarkDecorator:
    """Run a test also at the oldest version: its outcome depends on the version."""
    return run_at(NEWEST, OLDEST)
