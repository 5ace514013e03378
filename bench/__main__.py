"""`make bench`: run the benchmarks, print a JSON object for each, write bench/report.md.

python -m bench [NAME ...] [--quick]
"""

from __future__ import annotations

import argparse
import importlib
import json
import platform
import sys
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
HELPER_MODULES = {
    "__init__",
    "__main__",
    "api_cases",
    "api_client",
    "api_fleet",
    "api_reference",
    "broker_clients",
    "broker_load",
    "broker_programs",
    "broker_server",
    "brokers_exposure",
    "gateway_programs",
    "harness",
    "ingest_acked_load",
    "ingest_baselines",
    "ingest_export",
    "ingest_load",
    "ingest_nodered",
    "ingest_reports",
    "ingest_service",
    "ingest_verification",
    "jobs_fleet",
    "jobs_gateways",
    "link_programs",
    "live_listeners",
    "phases",
    "position_room",
    "position_sites",
    "process_meter",
    "programs",
    "requests_gateways",
    "requests_load",
}


def main() -> None:
    """Run the named benchmarks, or all, and write the report."""
    names = sorted(path.stem for path in FOLDER.glob("*.py") if path.stem not in HELPER_MODULES)
    parser = argparse.ArgumentParser(prog="python -m bench")
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"benchmark to run: {', '.join(names)} (default: all)"
    )
    parser.add_argument("--quick", action="store_true", help="short run for a first impression")
    arguments = parser.parse_args()
    if unknown := set(arguments.names) - set(names):
        parser.error(f"no benchmark named {', '.join(sorted(unknown))}")
    report = [f"# Benchmarks\n\nPython {platform.python_version()} on {platform.machine()}\n"]
    for name in arguments.names or names:
        print(f"{name}: this may take minutes", file=sys.stderr)
        result = importlib.import_module(f"bench.{name}").run(quick=arguments.quick)
        print(json.dumps({"benchmark": name, "quick": arguments.quick, **result}))
        report.append(_format_result(name, result))
    (FOLDER / "report.md").write_text("\n".join(report))


def _format_result(name: str, result: dict[str, Any]) -> str:
    """Format each part of a result as a table whose columns are the keys of its rows."""
    lines = [f"## {name}\n"]
    for part, rows in result.items():
        columns = sorted({key for row in rows.values() if isinstance(row, dict) for key in row}) or ["cpu_us"]
        lines += [f"| {part} | {' | '.join(columns)} |", "|---" * (len(columns) + 1) + "|"]
        for row, metrics in rows.items():
            cells = [metrics.get(key, "") for key in columns] if isinstance(metrics, dict) else [metrics]
            lines.append(f"| {row} | {' | '.join(map(str, cells))} |")
        lines.append("")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
