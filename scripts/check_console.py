"""Checks the types of the console against the current REST interface.

The types of the interface are generated each time, so that a field renamed in Python fails here.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from build_console import hold_build_lock, install, is_skipped, npm


def check(root: Path) -> None:
    """Generate the types of the interface, then run svelte-check.

    The lock prevents a concurrent build, which may replace the npm packages that are read here.
    """
    with hold_build_lock(root) as generated:
        install(root)
        document, types = generated / "openapi.json", generated / "schema.d.ts"
        with document.open("wb") as file:
            subprocess.run([sys.executable, "-m", "meshfleet", "openapi"], stdout=file, check=True)
        try:
            npm(root, "run", "types", "--silent", "--", str(document), "--output", str(types))
            npm(root, "run", "check", "--silent")
        except subprocess.CalledProcessError:
            sys.exit("The console has type errors, see above.")


if __name__ == "__main__":
    if is_skipped():
        print("The console is not checked: MESHFLEET_CONSOLE=skip.")
    else:
        check(Path(__file__).parents[1])
