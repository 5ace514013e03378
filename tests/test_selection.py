"""Selection of tests by parts: no test may be excluded everywhere."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

MISSPELT_IN_A_ROW = """
import pytest

@pytest.mark.parametrize("number", [1, pytest.param(2, marks=pytest.mark.part("lnog"))])
def test_numbers(number): pass
"""

MISSPELT_IN_A_CLASS = """
import pytest

class TestNumbers:
    @pytest.mark.part("lnog")
    def test_one(self): pass
"""


def test_a_misspelt_part_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "test_row.py").write_text(MISSPELT_IN_A_ROW)
    (tmp_path / "test_class.py").write_text(MISSPELT_IN_A_CLASS)
    result = subprocess.run(
        [sys.executable, "-m", "pytest", "-c", "/dev/null", "-p", "tests.selection", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        check=False,
        text=True,
    )
    assert result.returncode == pytest.ExitCode.INTERRUPTED, result.stdout + result.stderr
    for name in ("test_row.py::test_numbers[2]", "test_class.py::TestNumbers::test_one"):
        assert f"{name}: unknown part: lnog; the parts are " in result.stdout
    assert "test_numbers[1]: unknown part" not in result.stdout
