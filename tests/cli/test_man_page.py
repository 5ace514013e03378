"""The man page in docs/man, which is generated from the help texts."""

from __future__ import annotations

import runpy
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_man_page_is_up_to_date() -> None:
    generated = runpy.run_path(str(ROOT / "scripts" / "build_man.py"))["format_page"]()
    page = (ROOT / "docs" / "man" / "meshfleet.1").read_text("utf-8")
    assert page == generated, "run `make man`"
    assert r".SS meshfleet jobs create " in page
