"""`meshfleet gateways add --csv` and `rotate --csv`: many gateways at once."""

from __future__ import annotations

import csv
import io
import json
import re
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from signal import SIGINT
from threading import Event
from typing import TYPE_CHECKING, Any

import pytest

from meshfleet.client import BatchGateway
from meshfleet.client.blocking import Fleet
from meshfleet.errors import AlreadyExists
from meshfleet.testing import running_fleet
from tests.cli.programs import Program
from tests.cli.shell import create_logged_in_shell
from tests.eventually import eventually
from tests.row_tables import each_row

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from meshfleet.testing import RunningFleet
    from tests.cli.shell import Shell

GATEWAY, OTHER = "02005e00c001", "02005e00c002"


@pytest.fixture(scope="module")
def service() -> Iterator[RunningFleet]:
    """Run a service for this module: releasing 500 gateways, which others would count, takes long."""
    with running_fleet(devices=1) as running:
        yield running


@pytest.fixture(scope="module")
def login(service: RunningFleet, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Log in as admin, and return the content of the login file."""
    return create_logged_in_shell(tmp_path_factory.mktemp("home"), service).login.read_text()


@pytest.fixture
def fleet(service: RunningFleet) -> Iterator[Fleet]:
    """Connect to the service, and release the few gateways that tests claim more than once."""
    with Fleet(service.url, user=service.user, password=service.password) as fleet:
        yield fleet
        for each in list(fleet.gateways.list()):
            if each.mac in {GATEWAY, OTHER}:
                fleet.gateways.release(each.mac)
                fleet.devices.forget(each.mac)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return tmp_path / "gateways.csv"


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "credentials.csv"


def _read_credentials(path: Path) -> list[dict[str, str]]:
    assert path.stat().st_mode & 0o777 == 0o600
    return list(csv.DictReader(io.StringIO(path.read_text())))


@pytest.mark.rule("rest-232")
def test_a_file_of_excel_is_claimed_and_a_gateway_connects(
    admin: Shell, fleet: Fleet, source: Path, out: Path
) -> None:
    lines = ["labels;MAC; Name", '"Home;2nd floor";02:00:5E:00:C0:01;Käthe', "", ";0200.5e00.c002;", ";;"]
    source.write_bytes(b"\xef\xbb\xbf" + "\r\n".join(lines).encode())
    printed = admin.text("gateways", "add", "--csv", str(source), "--out", str(out))
    assert printed == f"Claimed 2 gateways; their credentials are in {out}.\n"
    first, second = _read_credentials(out)
    assert list(first) == ["mac", "username", "password", "host", "port", "tls"]
    assert (first["mac"], first["username"], first["tls"], second["mac"]) == (GATEWAY, GATEWAY, "no", OTHER)
    shown = fleet.devices.show(GATEWAY)
    assert (shown.friendly_name, sorted(shown.labels)) == ("Käthe", ["2nd floor", "Home"])
    broker = f"mqtt://{GATEWAY}:{first['password']}@{first['host']}:{first['port']}"
    with Program("gateway", "--mac", GATEWAY, "--devices", "1", MESHFLEET_BROKER=broker):
        eventually(lambda: fleet.gateways.show(GATEWAY).connected, "that the gateway is connected")


@pytest.mark.rule("rest-232")
def test_500_gateways_are_claimed_at_once(admin: Shell, fleet: Fleet, source: Path, out: Path) -> None:
    macs = [f"02005e01{number:04x}" for number in range(500)]
    source.write_text("mac,name,labels\n" + "".join(f"{mac},Gateway {mac},Site\n" for mac in macs))
    result = admin.json("gateways", "add", "--csv", str(source), "--out", str(out))
    assert result == {"claimed": 500, "skipped": 0, "out": str(out)}
    assert [each["mac"] for each in _read_credentials(out)] == macs
    assert len({each["password"] for each in _read_credentials(out)}) == 500
    assert fleet.devices.show(macs[499]).friendly_name == f"Gateway {macs[499]}"


@pytest.mark.rule("rest-232")
def test_every_mistake_is_reported_with_its_line_and_nothing_is_claimed(
    admin: Shell, service: RunningFleet, source: Path, out: Path
) -> None:
    claimed = service.gateways[0].mac
    rows = [
        *("mac,name,labels", f"{GATEWAY},,", "02005e00c0,,", ",Attic,", "0200zz00c001,,", "ffffffffffff,,"),
        *("2E+11,,", f'{OTHER},"a\tb",', f"02005e00c003,{'n' * 129},", f"02005e00c004,,a;{'l' * 65};..;"),
        *(f"BMAC-{GATEWAY.upper()},,", f"{claimed},,", "02005e00c005,x,y,z", f"nonsense,{'n' * 129},"),
        *(f"02005e00c006,,{';'.join('abcdefghijklmnopqrstu')}", '02005e00c007,"open', "02005e00c008,,"),
    ]
    source.write_text("\n".join(rows))
    result = admin("gateways", "add", "--csv", str(source), "--out", str(out))
    assert (result.exit_code, result.stdout) == (1, "")
    title, *mistakes = result.stderr.splitlines()
    assert title.startswith("Error: nothing was claimed, as lines are wrong. --skip-claimed leaves out")
    assert f"meshfleet gateways rotate --csv {source} --out FILE" in title
    found = [re.fullmatch(r".*gateways\.csv:(\d+): (.*)", line) for line in mistakes]
    assert [(int(each[1]), each[2]) for each in found if each] == [
        (3, "mac: '02005e00c0' is not 12 hex digits"),
        (4, "mac: is missing"),
        (5, "mac: '0200zz00c001' is not 12 hex digits"),
        (6, "mac: ffffffffffff stands for all gateways, not for one"),
        (7, "mac: a spreadsheet program made a number of it, '2E+11': format the column as text"),
        (8, "name: must not contain control characters"),
        (9, "name: has 129 characters; 1 to 128 are allowed"),
        (10, "labels: '..' cannot be part of a path"),
        (10, "labels: has 65 characters; 1 to 64 are allowed"),
        (11, f"mac: {GATEWAY} is also in line 2"),
        (12, f"mac: {claimed} is already claimed"),
        (13, "has 4 values for 3 columns"),
        (14, "mac: 'nonsense' is not 12 hex digits"),
        (14, "name: has 129 characters; 1 to 128 are allowed"),
        (15, "labels: a gateway can get at most 20 labels"),
        (16, "is not CSV: unexpected end of data; later lines were not checked"),
    ]
    assert not out.exists()
    listed = {each["mac"] for each in admin.json_lines("gateways", "list")}
    assert not listed & {GATEWAY, OTHER, "02005e00c003", "02005e00c008"}


@each_row(
    ("content", "mistakes"),
    [
        (b"", [":1: has no column mac: the first line names the columns, mac, name, labels"]),
        (b"02005e00c001\n", [":1: has no column mac: the first line names the columns, mac, name, labels"]),
        (
            b"\nmac,Mac,sn\n",
            [":2: the column 'sn' is not one of mac, name, labels", ":2: the column mac is there"],
        ),
        (b"mac\n\n", [":1: there are no gateways after the names of the columns"]),
        (b"mac,name\n02005e00c001,K\xe4the", [":2: is not UTF-8: save the file as CSV UTF-8"]),
        ("mac\n".encode("utf-16"), [":1: is not UTF-8: save the file as CSV UTF-8"]),
        (b"mac\n0200\0005e00c001\n", [":2: "]),
        (b"sep=;", [":1: has no column mac"]),
        (b"sep=ab\nmac\n", [":1: has no column mac"]),
        (b"SEP=|\r\nmac|username|serial\r\n", [":2: the column 'serial' is not one of mac, name, labels"]),
    ],
)
def test_a_file_that_is_not_such_a_table_is_refused(
    admin: Shell, source: Path, out: Path, content: bytes, mistakes: list[str]
) -> None:
    source.write_bytes(content)
    for command in ("add", "rotate"):
        result = admin("gateways", command, "--csv", str(source), "--out", str(out))
        assert (result.exit_code, out.exists()) == (1, False)
        lines = result.stderr.splitlines()[1:]
        assert [each in line for each, line in zip(mistakes, lines, strict=True)] == [True] * len(lines), (
            lines
        )


@pytest.mark.rule("rest-227", "rest-233")
def test_lost_passwords_are_replaced(admin: Shell, fleet: Fleet, source: Path, out: Path) -> None:
    # The service has claimed the gateways, and the command was killed before it wrote the passwords.
    lost = fleet.gateways.claim_many([BatchGateway(mac=GATEWAY.upper()), BatchGateway(mac=OTHER)])
    source.write_text(f"mac\n{GATEWAY}\n{OTHER}\n")
    with pytest.raises(AlreadyExists, match="already claimed"):
        fleet.gateways.claim_many([BatchGateway(mac=GATEWAY)])
    again = admin("gateways", "add", "--csv", str(source), "--out", str(out))
    assert (again.exit_code, "meshfleet gateways rotate --csv" in again.stderr) == (1, True)
    printed = admin.text("gateways", "rotate", "--csv", str(source), "--out", str(out))
    assert printed == f"2 gateways have new passwords; their credentials are in {out}.\n"
    rotated = _read_credentials(out)
    assert [each["mac"] for each in rotated] == [GATEWAY, OTHER]
    assert not {each["password"] for each in rotated} & {each.password for each in lost}
    source.write_text(f"mac\n{GATEWAY}\n02005e00c009\n")
    refused = admin("gateways", "rotate", "--csv", str(source), "--out", str(out) + "2")
    assert refused.stderr.splitlines()[1].endswith("gateways.csv:3: mac: 02005e00c009 is not claimed")


@pytest.mark.rule("rest-232", "rest-233")
def test_a_credentials_file_is_also_a_list_of_gateways(
    admin: Shell, fleet: Fleet, source: Path, out: Path
) -> None:
    fleet.gateways.claim(OTHER)
    source.write_bytes(f"sep=;\r\nname;mac\r\nLobby, left;{GATEWAY}\r\n".encode())
    admin.text("gateways", "add", "--csv", str(source), "--out", str(out))
    assert fleet.devices.show(GATEWAY).friendly_name == "Lobby, left"
    # A spreadsheet program has saved the credentials file again, with another gateway.
    claimed, edited = _read_credentials(out), out.with_name("edited.csv")
    lines = [*out.read_text().splitlines(), f"{OTHER},{OTHER},password,host,1883,no", ""]
    edited.write_text("\r".join(["sep=\t", *(each.replace(",", "\t") for each in lines)]))
    arguments = ("--csv", str(edited), "--out")
    added = admin.text("gateways", "add", "--skip-claimed", *arguments, str(out) + "2")
    assert added == "Claimed nothing. 2 were claimed before.\n"
    admin.text("gateways", "rotate", *arguments, str(out) + "3")
    rotated = _read_credentials(out.with_name(out.name + "3"))
    assert [each["mac"] for each in rotated] == [GATEWAY, OTHER]
    assert rotated[0]["password"] != claimed[0]["password"]


@pytest.mark.rule("rest-232")
def test_claimed_gateways_are_skipped_on_request(admin: Shell, fleet: Fleet, source: Path, out: Path) -> None:
    fleet.gateways.claim(OTHER)
    source.write_text(f"mac\n{GATEWAY}\n{OTHER}\n")
    arguments = ("gateways", "add", "--skip-claimed", "--csv", str(source), "--out")
    printed = admin.text(*arguments, str(out))
    assert printed == f"Claimed 1 gateways; their credentials are in {out}. 1 were claimed before.\n"
    assert [each["mac"] for each in _read_credentials(out)] == [GATEWAY]
    nothing = out.with_name("nothing.csv")
    assert admin.text(*arguments, str(nothing)) == "Claimed nothing. 2 were claimed before.\n"
    assert not nothing.exists()


@pytest.mark.rule("rest-232")
def test_a_file_with_credentials_is_never_overwritten(admin: Shell, source: Path, out: Path) -> None:
    source.write_text(f"mac\n{GATEWAY}\n")
    out.write_text("precious")
    error = admin.expect_failure("gateways", "add", "--csv", str(source), "--out", str(out))
    assert "exists already: give another file with --out" in error
    assert out.read_text() == "precious"
    out.unlink()
    out.symlink_to(out.with_name("target"))
    assert "exists already" in admin.expect_failure(
        "gateways", "add", "--csv", str(source), "--out", str(out)
    )
    assert GATEWAY not in admin.text("gateways", "list")


@each_row(
    "arguments",
    [
        ["add"],
        ["rotate"],
        ["add", GATEWAY, "--csv", "{0}", "--out", "x"],
        ["add", "--csv", "{0}"],
        ["add", "--csv", "{0}", "--out", "x", "--name", "y"],
        ["add", GATEWAY, "--out", "x"],
        ["add", GATEWAY, "--skip-claimed"],
        ["rotate", GATEWAY, "--csv", "{0}", "--out", "x"],
        ["add", "--csv", "missing.csv", "--out", "x"],
    ],
)
def test_options_that_do_not_fit_are_wrong_usage(
    logged_out: Shell, source: Path, arguments: list[str]
) -> None:
    source.touch()
    logged_out.expect_failure("gateways", *(each.format(source) for each in arguments), code=2)


class _FailingService(BaseHTTPRequestHandler):
    """Handler of a service that has no gateways, claims one batch, and refuses the next one.

    With the token `slow` it does not respond to the next one until the connection is closed.
    """

    claimed = 0
    has_second = Event()

    def do_GET(self) -> None:
        self._respond(200, {"items": [], "nextToken": None})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        macs = [each["mac"] for each in body["gateways"]]
        if type(self).claimed:
            type(self).has_second.set()
            if self.headers["Authorization"] == "Bearer slow":
                self.rfile.read()
                return
            self._respond(409, {"code": "already-exists", "detail": f"{macs[0]} is claimed"})
            return
        type(self).claimed = len(macs)
        broker = {"host": "10.0.0.1", "port": 8883, "tls": True}
        items = [
            {"mac": mac, "deviceId": f"bmac-{mac}", "username": mac, "password": "x" * 44, "broker": broker}
            for mac in macs
        ]
        self._respond(201, {"items": items})

    def _respond(self, status: int, body: dict[str, Any]) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json" if status < 400 else "application/problem+json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        """Suppress the log."""


@contextmanager
def _running_failing_service() -> Iterator[str]:
    """Run a service that fails after the first batch, and yield its URL."""
    _FailingService.claimed = 0
    _FailingService.has_second.clear()
    with ThreadingHTTPServer(("127.0.0.1", 0), _FailingService) as server, ThreadPoolExecutor() as pool:
        pool.submit(server.serve_forever)
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()


@pytest.mark.rule("rest-232")
@each_row(("token", "reason"), [("key", "Error: 02005e0203e8 is claimed"), ("slow", "Interrupted.")])
def test_a_failure_after_the_first_thousand_says_what_was_done(
    logged_out: Shell, source: Path, out: Path, token: str, reason: str
) -> None:
    source.write_text("mac\n" + "".join(f"02005e02{number:04x}\n" for number in range(1001)))
    out.unlink(missing_ok=True)
    with _running_failing_service() as url:
        logged_out.write_login(json.dumps({"url": url, "user": "ada", "token": token}))
        with logged_out.start("gateways", "add", "--csv", str(source), "--out", str(out)) as command:
            eventually(_FailingService.has_second.is_set, "that the second batch has arrived")
            result = command.wait_for_exit(SIGINT if token == "slow" else None)  # noqa: S105 # not a secret
    assert result[:2] == (1, "")
    assert result[2].splitlines()[:4] == [
        reason,
        f"1000 gateways are claimed, and their credentials in {out}.",
        (
            "The gateways of line 1002 may be claimed without their passwords being stored. "
            "See meshfleet gateways list; create new passwords with meshfleet gateways rotate --csv."
        ),
        "For the others run the command again with --skip-claimed and another --out.",
    ]
    credentials = _read_credentials(out)
    assert (len(credentials), credentials[0]["tls"]) == (1000, "yes")


@pytest.mark.rule("rest-232")
def test_a_full_disk_says_that_gateways_are_claimed_without_stored_passwords(
    admin: Shell, fleet: Fleet, source: Path, out: Path
) -> None:
    macs = [f"02005e03{number:04x}" for number in range(30)]
    source.write_text("mac\n" + "\n".join(macs))
    arguments = ("gateways", "add", "--csv", str(source), "--out", str(out))
    with admin.start(*arguments, before="ulimit -f 1") as command:
        code, printed, errors = command.wait_for_exit()
    assert (code, printed, out.exists()) == (1, "", False)
    assert errors.splitlines() == [
        "Error: the credentials cannot be written: File too large",
        (
            "The gateways of lines 2 to 31 may be claimed without their passwords being stored. "
            "See meshfleet gateways list; create new passwords with meshfleet gateways rotate --csv."
        ),
    ]
    assert set(macs) <= {each.mac for each in fleet.gateways.list()}
