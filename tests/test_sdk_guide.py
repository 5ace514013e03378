"""docs/guides/sdk.md: every program and every piece of it, run by somebody who reads it."""

from __future__ import annotations

import ast
import asyncio
import json
import re
import subprocess
import sys
import textwrap
from pathlib import Path
from threading import Timer
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from meshfleet import errors
from meshfleet.client import Fleet, Mesh, blocking
from meshfleet.errors import mqtt as mqtt_errors
from meshfleet.errors import protocol as protocol_errors
from tests.cli.programs import TEST_TIMEOUT, Program
from tests.cli.shell import wait_until_connected
from tests.client.typing.checker import mistakes
from tests.eventually import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

PAGE = (Path(__file__).parent.parent / "docs" / "guides" / "sdk.md").read_text()
PASSWORD = "correct-horse-battery"  # noqa: S105 # of nobody
TIME = r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d\.\d+(Z|\+00:00)"
MAC = "(bmac-)?[0-9a-f]{12}"


class DemoService(NamedTuple):
    """Where a service is."""

    url: str
    mqtt: str

    def adapt(self, text: str) -> str:
        """A program of the page, for where this service is."""
        here = text.replace("http://127.0.0.1:8080", self.url).replace("127.0.0.1:1883", self.mqtt)
        return here.replace("…", PASSWORD)


class Block(NamedTuple):
    """A block of Python on the page."""

    heading: str
    text: str

    @property
    def is_fragment(self) -> bool:
        """Whether it stands inside of an `async with`."""
        is_async = re.search(r"^ *(async |.*\bawait )", self.text, re.MULTILINE) is not None
        return is_async and "asyncio.run(" not in self.text


class ExpectedOutput(NamedTuple):
    """What a block prints: lines that match these, in this order, and maybe others between them."""

    heading: str
    lines: tuple[str, ...]
    is_endless: bool = False


EXPECTED_OUTPUTS = (
    ExpectedOutput("The first device", tuple(re.findall(r"^    (bmac-.*)$", PAGE, re.MULTILINE))),
    ExpectedOutput(
        "The first device", (r"^battery \d+ %$", rf"^{MAC} rssi None Rssi\(time="), is_endless=True
    ),
    ExpectedOutput(
        "Lists", (r"^MT MotionSensor 15x \w{4} \d\.\d\.\d (True|False)$", r"^[1-9]\d+ \[\('\w{4}', \d+\)")
    ),
    ExpectedOutput("Lists", (rf"^{TIME} \d+\.\d+$", r"^°C \[.*\d+\.\d+")),
    ExpectedOutput("Lists", (rf"^{MAC} -\d+ dBm \[.*-\d+\.\d+", r"^\['°C'\]$")),
    ExpectedOutput(
        "Reading and writing", (r"^\d+ % through 02005e000001 (strongest|last-heard)$", r"^\d+ % again$")
    ),
    ExpectedOutput("Reading and writing", (rf"^(PENDING|DONE) {TIME}$",)),
    ExpectedOutput("Reading and writing", (r"^2\.4\.0 4$",)),
    ExpectedOutput("Errors", ("^unknown: device bmac-c0ffee000001 not found$",)),
    ExpectedOutput("Live events", (rf"^{TIME} {MAC} [a-z-]+ .+$",), is_endless=True),
    ExpectedOutput(
        "Updates",
        (r"^[1-9]\d* would be updated, [1-9]\d* not, such as: its ", "^IN_PROGRESS 0 None$", "^CANCELED "),
    ),
    ExpectedOutput(
        "Reports that survive restarts", (rf"^{MAC} {MAC} 8\w{{3}} Measurement\(",), is_endless=True
    ),
    ExpectedOutput("Acks", (rf"^acknowledged {MAC} {TIME}$",)),
    ExpectedOutput("Without asyncio", (r"^Back door \d+ %$", r"^Live\w+\(device='bmac-")),
    ExpectedOutput("Tests of your own", ("^1 passed",)),
)


def blocks() -> list[Block]:
    """All blocks of Python, with the headings that they stand under."""
    found = []
    for section in re.split(r"^## ", PAGE, flags=re.MULTILINE)[1:]:
        texts = re.findall(r"^```python\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
        found += [Block(section.partition("\n")[0], text) for text in texts]
    return found


PAIRS = [
    pytest.param(block, seen, id=f"{number}-{block.heading}")
    for number, (block, seen) in enumerate(zip(blocks(), EXPECTED_OUTPUTS, strict=True), start=1)
]


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DemoService]:
    """The fleet that the page is about, on free ports."""
    folder = tmp_path_factory.mktemp("service")
    given = ["serve", "--demo", "--json", "--http", "127.0.0.1:0", "--data", str(folder / "data")]
    with Program(*given, MESHFLEET_ADMIN_PASSWORD=PASSWORD) as program:
        started = json.loads(program.read_line())
        running = DemoService(started["url"], started["mqtt"][0].partition("://")[2])
        _wait_until_ready(running)
        yield running


def _wait_until_ready(running: DemoService) -> None:
    """People take their time before they run the next piece."""
    macs = (*(f"02005e00000{number}" for number in (1, 2, 3)), *(f"ca5bda1a000{digit}" for digit in "246c"))
    with blocking.Fleet(running.url, user="admin", password=PASSWORD) as fleet:
        wait_until_connected(fleet, *macs)
        eventually(lambda: fleet.samples.series("ca5bda1a0006", "temperature").items)


@pytest.mark.parametrize(("block", "seen"), PAIRS)
def test_every_block_of_the_page_does_what_it_says(
    block: Block, seen: ExpectedOutput, service: DemoService, tmp_path: Path
) -> None:
    assert block.heading == seen.heading
    text = service.adapt(block.text)
    if "import pytest" in text:
        said = _run_tests(text, tmp_path)
    elif block.is_fragment:
        said = asyncio.run(_run_fragment(text, service, seen))
    else:
        said = _run_program(text, tmp_path, seen)
    assert _missing(seen, said) == [], said


def _missing(seen: ExpectedOutput, said: list[str]) -> list[str]:
    """What should have been said, and was not, or not in this order."""
    rest = iter(said)
    return [line for line in seen.lines if not any(re.search(line, each) for each in rest)]


def _run_tests(text: str, folder: Path) -> list[str]:
    """What pytest says to a test."""
    (folder / "test_mine.py").write_text(text)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "error", str(folder)]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=folder, timeout=2 * TEST_TIMEOUT
    )
    return done.stdout.splitlines()


def _run_program(text: str, folder: Path, seen: ExpectedOutput) -> list[str]:
    """What a program prints, to its end or until all has been seen."""
    (folder / "mine.py").write_text(text)
    said = []
    with subprocess.Popen(
        [sys.executable, "-u", "-W", "error", "mine.py"], stdout=subprocess.PIPE, text=True, cwd=folder
    ) as process:
        guard = Timer(TEST_TIMEOUT, process.kill)
        guard.start()
        assert process.stdout is not None
        for line in process.stdout:
            said.append(line.removesuffix("\n"))
            if seen.is_endless and not _missing(seen, said):
                process.kill()
        guard.cancel()
    assert seen.is_endless or process.returncode == 0, said
    return said


async def _run_fragment(text: str, service: DemoService, seen: ExpectedOutput) -> list[str]:
    """The same of a piece, in a block that gives it `fleet` and `mesh`."""
    said: list[str] = []
    enough = asyncio.Event()

    def say(*words: object) -> None:
        said.append(" ".join(map(str, words)))
        if seen.is_endless and not _missing(seen, said):
            enough.set()

    async with (
        asyncio.timeout(TEST_TIMEOUT),
        Fleet(service.url, user="admin", password=PASSWORD) as fleet,
        Mesh(f"mqtt://admin:{PASSWORD}@{service.mqtt}") as mesh,
    ):
        names: dict[str, Any] = {"fleet": fleet, "mesh": mesh, "print": say}
        code = compile(text, "sdk.md", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        running = asyncio.ensure_future(eval(code, names))  # noqa: S307 # our own page
        waiting = asyncio.ensure_future(enough.wait())
        await asyncio.wait((running, waiting), return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        if running.done():
            running.result()
        running.cancel()
        await asyncio.gather(running, waiting, return_exceptions=True)
    return said


@pytest.mark.part("long")
def test_a_type_checker_accepts_every_block_of_the_page(tmp_path: Path) -> None:
    beginning = (
        "from meshfleet.client import Fleet, Mesh\n\n\nasync def piece(fleet: Fleet, mesh: Mesh) -> None:\n"
    )
    programs = {
        f"{number} {block.heading}": beginning + textwrap.indent(block.text, "    ")
        if block.is_fragment
        else block.text
        for number, block in enumerate(blocks())
    }
    assert mistakes(tmp_path, programs) == {name: [] for name in programs}


# Errors


def _rows() -> list[list[str]]:
    """The table of errors: the names in it, and in words when they are raised."""
    (table,) = re.findall(r"^\| class \|.*\n\|[-|]+\n((?:\|.*\n)+)", PAGE, re.MULTILINE)
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in table.splitlines()]


def _classes(cell: str) -> list[type[errors.FleetError]]:
    defined = {**vars(mqtt_errors), **vars(protocol_errors), **vars(errors)}
    return [defined[name] for name in re.findall(r"`([A-Z]\w+)`", cell)]


def test_the_table_tells_of_every_error_of_a_request_and_whether_it_may_have_happened() -> None:
    rows = {words: _classes(names) for names, words, _ in _rows()}
    (unsent,) = [kinds for words, kinds in rows.items() if "`sent` is false" in words]
    (sent,) = [kinds for words, kinds in rows.items() if "`sent` is true" in words]
    every = errors.Unanswered.__subclasses__()
    assert {*unsent} == {each for each in every if not each.sent}
    assert {*sent} == {each for each in every if each.sent}


def test_every_error_of_a_link_or_a_service_is_in_the_table_or_below_one_that_is() -> None:
    told = tuple(each for names, _, _ in _rows() for each in _classes(names))
    only_inside = {mqtt_errors.Undelivered}  # a Mesh logs it
    roots = (mqtt_errors.LinkError, errors.Unanswered, errors.Unavailable)
    assert {
        each for root in roots for each in root.__subclasses__() if not issubclass(each, told)
    } == only_inside
