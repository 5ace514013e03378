"""Hook of mkdocs that generates pages from the program itself: start page, changelog and reference."""

from __future__ import annotations

import inspect
import re
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Final, cast

import httpx
from mkdocs.structure.files import File

from meshfleet import client, errors
from meshfleet.client import blocking
from meshfleet.settings.table import SETTINGS
from meshfleet.testing import running_fleet

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files

_ROOT: Final = Path(__file__).parent.parent

_LINK_OUT: Final = re.compile(r"\[([^\]]+)\]\((?:\.\./)*(?:src|examples|tests|bench|[A-Z]+)\b[^)]*\)")
"""Link to a file of the repository outside of `docs`, which is not on the site."""

_TESTED_BLOCK: Final = re.compile(r"^```sh tested$", re.MULTILINE)
"""First line of a block of commands that the tests run. The highlighter does not know the second word."""

_CLI_PAGE: Final = """
# Command line

::: mkdocs-click
    :module: meshfleet.cli
    :command: main
    :prog_name: meshfleet
    :depth: 1
    :style: table
"""

_SETTINGS_TEXT: Final = """
Each setting is an option of `meshfleet serve` (`--mqtt-tls`), an environment variable (`MESHFLEET_MQTT_TLS`)
or a key of the settings file (`mqtt-tls`; a dot separates the name of a TOML table from the key). The option
takes precedence over the variable, and the variable over the file.
"""

_METRICS_TEXT: Final = """
`GET /metrics` returns these metrics in the text format of Prometheus.
"""

_ERRORS_TEXT: Final = """
A response with an error has one of these codes. The SDK raises the exception of the code.
"""


def on_config(config: MkDocsConfig) -> None:
    """Add all decisions to the navigation, in their order."""
    names = sorted(path.name for path in (_ROOT / "docs" / "decisions").glob("0*.md"))
    pages = ["decisions/README.md", *(f"decisions/{name}" for name in names)]
    cast("list[object]", config.nav).append({"Decisions": pages})


def on_files(files: Files, config: MkDocsConfig) -> None:
    """Add the generated pages to those in `docs`."""
    pages = {
        "index.md": (_ROOT / "README.md").read_text().replace("(docs/", "("),
        "changelog.md": (_ROOT / "CHANGELOG.md").read_text(),
        "reference/cli.md": _CLI_PAGE,
        "reference/errors.md": _build_page("Error codes", _ERRORS_TEXT, _list_errors()),
        "reference/metrics.md": _build_page("Metrics", _METRICS_TEXT, _list_metrics()),
        "reference/sdk.md": _build_sdk_page(),
        "reference/settings.md": _build_page("Settings", _SETTINGS_TEXT, _list_settings()),
    }
    for path, text in pages.items():
        files.append(File.generated(config, path, content=text))


def on_page_markdown(markdown: str, **_: object) -> str:
    """Replace links to files that are not on the site by their texts. Remove the mark of tested blocks."""
    return _LINK_OUT.sub(r"\1", _TESTED_BLOCK.sub("```sh", markdown))


def _build_page(title: str, text: str, rows: Iterable[tuple[str, ...]]) -> str:
    """Build a page with a table. The first row has the names of the columns."""
    head, *others = rows
    cells = [[cell.replace("|", r"\|") for cell in row] for row in (head, ("---",) * len(head), *others)]
    table = "\n".join(f"| {' | '.join(row)} |" for row in cells)
    return f"# {title}\n{text}\n{table}\n"


def _build_sdk_page() -> str:
    """Build a page with the package `meshfleet.client`, and a section for each part of a `Fleet`."""
    parts = vars(client.Fleet("http://localhost")).items()
    sections = [
        f"## fleet.{name}\n\n::: {type(part).__module__}.{type(part).__name__}\n"
        for name, part in parts
        if not name.startswith("_")
    ]
    return "\n".join(["# SDK\n\n::: meshfleet.client\n", *sections])


def _list_settings() -> Iterator[tuple[str, ...]]:
    yield "Setting", "Value", "Default", "Meaning"
    for each in SETTINGS:
        default = f"`{each.default_text}`" if each.default_text else ""
        yield f"`{each.name}`", f"`{each.metavar}`", default, each.help


def _list_metrics() -> Iterator[tuple[str, ...]]:
    """Yield the metrics that a service returns after its start."""
    yield "Metric", "Type", "Meaning"
    meaning = ""
    for line in _fetch_metrics().splitlines():
        match line.split(" ", 3):
            case ["#", "HELP", _, meaning]:
                pass
            case ["#", "TYPE", name, kind] if not name.endswith("_created"):
                yield f"`{name}`", kind, meaning


def _fetch_metrics() -> str:
    """Run a service, and return its metrics."""
    with (
        running_fleet() as running,
        blocking.Fleet(running.url, user=running.user, password=running.password) as fleet,
    ):
        headers = {"Authorization": f"Bearer {fleet.log_in().token}"}
        return httpx.get(f"{running.url}/metrics", headers=headers).raise_for_status().text


def _list_errors() -> Iterator[tuple[str, ...]]:
    yield "Code", "Status", "Exception", "Meaning"
    names = [f"meshfleet.errors.{module.name}" for module in iter_modules(errors.__path__)]
    classes = {
        error
        for module in (errors, *map(import_module, names))
        for _, error in inspect.getmembers(module, inspect.isclass)
        if issubclass(error, errors.FleetError) and "code" in vars(error)
    }
    for error in sorted(classes, key=lambda error: (error.http, error.code)):
        meaning = " ".join((error.__doc__ or "").split())
        yield f"`{error.code}`", str(error.http), f"`{error.__name__}`", meaning
