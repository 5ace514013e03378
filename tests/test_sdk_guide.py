"""Programs and fragments of docs/guides/sdk.md, executed."""

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
from tests.client.typing.checker import check_programs
from tests.eventually import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

PAGE = (Path(__file__).parent.parent / "docs" / "guides" / "sdk.md").read_text()
PASSWORD = "correct-horse-battery"  # noqa: S105 # not a real password
TIME = r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d\.\d+(Z|\+00:00)"
MAC = "(bmac-)?[0-9a-f]{12}"


class DemoService(NamedTuple):
    """Addresses of a running service."""

    url: str
    mqtt: str

    def adapt(self, text: str) -> str:
        """Replace the addresses and the password in a program of the page."""
        adapted = text.replace("http://127.0.0.1:8080", self.url).replace("127.0.0.1:1883", self.mqtt)
        return adapted.replace("…", PASSWORD)


class Block(NamedTuple):
    """Block of Python on the page."""

    heading: str
    text: str

    @property
    def is_fragment(self) -> bool:
        """Whether the block belongs inside an `async with`."""
        is_async = re.search(r"^ *(async |.*\bawait )", self.text, re.MULTILINE) is not None
        return is_async and "asyncio.run(" not in self.text


class ExpectedOutput(NamedTuple):
    """Output of a block: lines that match these patterns, in order, possibly with others in between."""

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
    ExpectedOutput("Sites and places", (r"^bmac-ca5bda1a0002 0 12\.5 3\.0$",)),
    ExpectedOutput("Sites and places", ("^No anchor has received the device in the 120 s",)),
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


def find_blocks() -> list[Block]:
    """Return all blocks of Python, with the headings above them."""
    blocks = []
    for section in re.split(r"^## ", PAGE, flags=re.MULTILINE)[1:]:
        texts = re.findall(r"^```python\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
        blocks += [Block(section.partition("\n")[0], text) for text in texts]
    return blocks


BLOCKS_WITH_OUTPUT = [
    pytest.param(block, expected, id=f"{number}-{block.heading}")
    for number, (block, expected) in enumerate(zip(find_blocks(), EXPECTED_OUTPUTS, strict=True), start=1)
]


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DemoService]:
    """Run the demo fleet that the page describes, on free ports."""
    directory = tmp_path_factory.mktemp("service")
    arguments = ["serve", "--demo", "--json", "--http", "127.0.0.1:0", "--data", str(directory / "data")]
    with Program(*arguments, MESHFLEET_ADMIN_PASSWORD=PASSWORD) as program:
        started = json.loads(program.read_line())
        running = DemoService(started["url"], started["mqtt"][0].partition("://")[2])
        _wait_until_ready(running)
        yield running


def _wait_until_ready(running: DemoService) -> None:
    """Wait until the devices that the page uses are connected and have reported."""
    macs = (*(f"02005e00000{number}" for number in (1, 2, 3)), *(f"ca5bda1a000{digit}" for digit in "246c"))
    with blocking.Fleet(running.url, user="admin", password=PASSWORD) as fleet:
        wait_until_connected(fleet, *macs)
        eventually(lambda: fleet.samples.series("ca5bda1a0006", "temperature").items)


@pytest.mark.parametrize(("block", "expected"), BLOCKS_WITH_OUTPUT)
def test_every_block_of_the_page_prints_what_it_says(
    block: Block, expected: ExpectedOutput, service: DemoService, tmp_path: Path
) -> None:
    assert block.heading == expected.heading
    text = service.adapt(block.text)
    if "import pytest" in text:
        output = _run_tests(text, tmp_path)
    elif block.is_fragment:
        output = asyncio.run(_run_fragment(text, service, expected))
    else:
        output = _run_program(text, tmp_path, expected)
    assert _find_missing_lines(expected, output) == [], output


def _find_missing_lines(expected: ExpectedOutput, output: list[str]) -> list[str]:
    """Return the expected lines that are missing in the output, or not in order."""
    remaining = iter(output)
    return [line for line in expected.lines if not any(re.search(line, each) for each in remaining)]


def _run_tests(text: str, directory: Path) -> list[str]:
    """Run a test with pytest, and return its output."""
    (directory / "test_mine.py").write_text(text)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "error", str(directory)]
    result = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=directory, timeout=2 * TEST_TIMEOUT
    )
    return result.stdout.splitlines()


def _run_program(text: str, directory: Path, expected: ExpectedOutput) -> list[str]:
    """Run a program to its end, or until all expected lines are printed, and return its output."""
    (directory / "mine.py").write_text(text)
    output = []
    with subprocess.Popen(
        [sys.executable, "-u", "-W", "error", "mine.py"], stdout=subprocess.PIPE, text=True, cwd=directory
    ) as process:
        timer = Timer(TEST_TIMEOUT, process.kill)
        timer.start()
        assert process.stdout is not None
        for line in process.stdout:
            output.append(line.removesuffix("\n"))
            if expected.is_endless and not _find_missing_lines(expected, output):
                process.kill()
        timer.cancel()
    assert expected.is_endless or process.returncode == 0, output
    return output


async def _run_fragment(text: str, service: DemoService, expected: ExpectedOutput) -> list[str]:
    """Run a fragment with `fleet` and `mesh` in scope, and return its output."""
    output: list[str] = []
    is_complete = asyncio.Event()

    def record(*values: object) -> None:
        output.append(" ".join(map(str, values)))
        if expected.is_endless and not _find_missing_lines(expected, output):
            is_complete.set()

    async with (
        asyncio.timeout(TEST_TIMEOUT),
        Fleet(service.url, user="admin", password=PASSWORD) as fleet,
        Mesh(f"mqtt://admin:{PASSWORD}@{service.mqtt}") as mesh,
    ):
        names: dict[str, Any] = {"fleet": fleet, "mesh": mesh, "print": record}
        code = compile(text, "sdk.md", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        running = asyncio.ensure_future(eval(code, names))  # noqa: S307 # code of our own page
        completed = asyncio.ensure_future(is_complete.wait())
        await asyncio.wait((running, completed), return_when=asyncio.FIRST_COMPLETED)
        completed.cancel()
        if running.done():
            running.result()
        running.cancel()
        await asyncio.gather(running, completed, return_exceptions=True)
    return output


@pytest.mark.part("long")
def test_a_type_checker_accepts_every_block_of_the_page(tmp_path: Path) -> None:
    preamble = (
        "from meshfleet.client import Fleet, Mesh\n\n\nasync def piece(fleet: Fleet, mesh: Mesh) -> None:\n"
    )
    programs = {
        f"{number} {block.heading}": preamble + textwrap.indent(block.text, "    ")
        if block.is_fragment
        else block.text
        for number, block in enumerate(find_blocks())
    }
    assert check_programs(tmp_path, programs) == {name: [] for name in programs}


# Errors


def _find_error_rows() -> list[list[str]]:
    """Return the rows of the table of errors."""
    (table,) = re.findall(r"^\| class \|.*\n\|[-|]+\n((?:\|.*\n)+)", PAGE, re.MULTILINE)
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in table.splitlines()]


def _find_error_classes(cell: str) -> list[type[errors.FleetError]]:
    defined = {**vars(mqtt_errors), **vars(protocol_errors), **vars(errors)}
    return [defined[name] for name in re.findall(r"`([A-Z]\w+)`", cell)]


def test_the_table_of_errors_states_for_every_error_of_a_request_whether_it_was_sent() -> None:
    rows = {description: _find_error_classes(names) for names, description, _ in _find_error_rows()}
    (unsent,) = [kinds for description, kinds in rows.items() if "`sent` is false" in description]
    (sent,) = [kinds for description, kinds in rows.items() if "`sent` is true" in description]
    all_errors = errors.Unanswered.__subclasses__()
    assert {*unsent} == {each for each in all_errors if not each.sent}
    assert {*sent} == {each for each in all_errors if each.sent}


def test_every_error_of_a_connection_or_service_is_in_the_table_or_a_subclass() -> None:
    listed = tuple(each for names, _, _ in _find_error_rows() for each in _find_error_classes(names))
    internal = {mqtt_errors.Undelivered}  # a Mesh only logs it
    roots = (mqtt_errors.MqttError, errors.Unanswered, errors.Unavailable)
    assert {
        each for root in roots for each in root.__subclasses__() if not issubclass(each, listed)
    } == internal
