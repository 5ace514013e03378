"""`meshfleet doctor`: one planted fault for each check, and the exact line about it."""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import socket
import sqlite3
import threading
from contextlib import closing, contextmanager
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import TYPE_CHECKING

import httpx

from meshfleet.db.schema import list_revisions
from tests.cli.installation import DAY_MS, IMAGE_NAME, NOW
from tests.cli.programs import Program
from tests.eventually import eventually
from tests.integrations.line_server import line_server
from tests.row_tables import each_row
from tests.servers import Mosquitto

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.cli.installation import Installation

CURRENT = list_revisions()[-1]


def without_clock(output: str) -> list[str]:
    """Return the lines except those of the clock, which is the one of this machine."""
    return [line for line in output.splitlines() if "timedatectl" not in line and line[6:11] != "clock"]


def list_tree(folder: Path) -> dict[str, tuple[float, bytes]]:
    return {
        str(path): (path.stat().st_mtime_ns, path.read_bytes() if path.is_file() else b"")
        for path in folder.rglob("*")
    }


def test_a_healthy_installation_has_no_faults_and_is_not_changed(
    create_installation: Callable[[], Installation],
) -> None:
    place = create_installation()
    before = list_tree(place.data)
    result = place.examine("--deep")
    assert list_tree(place.data) == before
    lines = without_clock(result.stdout)
    assert re.fullmatch(
        r"ok    disk                .* of data, .* GB free; growth not known yet", lines.pop(10)
    )
    owner = place.data.owner()
    sqlite = ".".join(map(str, sqlite3.sqlite_version_info))
    files = re.findall(
        r"^ok    descriptors         (\d+ open files|no limit of open files)", result.stdout, re.MULTILINE
    )
    http, mqtt = place.settings["http"], place.settings["mqtt"]
    assert lines == [
        f"ok    settings            {place.config}, 4 set",
        f"ok    data                {place.data}, 0700, owner {owner}, no service is running",
        f"ok    descriptors         {files[0]}, 100 MQTT connections",
        f"ok    listeners           http {http}, mqtt {mqtt}: free",
        "ok    public-url          not asked: no service is running",
        "ok    certificate         none: listeners have no TLS",
        "ok    broker              embedded",
        "ok    homeassistant       off",
        f"ok    database            SQLite in {place.data}, version {sqlite}",
        f"ok    schema              {CURRENT}, current",
        "ok    rejects             none in the last 24 hours",
        "ok    backup              1 days ago, 2 MB, with samples",
        "ok    gateways            1 claimed, all seen",
        "ok    integrity           the database is intact",
        "ok    samples             0 samples read from 1 files",
        "ok    images              1 firmware images read",
        "ok    plans               1 plans of floors read",
    ]
    assert result.exit_code == 0


def test_findings_are_printed_as_json(create_installation: Callable[[], Installation]) -> None:
    place = create_installation()
    place.execute("DELETE FROM backup")
    found = [json.loads(line) for line in place.examine("--json").stdout.splitlines()]
    assert [each for each in found if each["check"] == "backup"] == [
        {
            "level": "warn",
            "check": "backup",
            "text": "no backup with samples was written and checked yet",
            "nextCommand": "meshfleet backup DIRECTORY",
        }
    ]


def plant_nothing_there(place: Installation) -> None:
    shutil.rmtree(place.data)


def plant_unfinished_restore(place: Installation) -> None:
    (place.data / "restore.unfinished").touch()


def plant_unreadable_lock(place: Installation) -> None:
    (place.data / "meshfleet.lock").symlink_to("meshfleet.lock")


def plant_no_database(place: Installation) -> None:
    (place.data / "meshfleet.sqlite").unlink()


def plant_damaged_database(place: Installation) -> None:
    (place.data / "meshfleet.sqlite").write_bytes(b"no database" * 100)


def plant_missing_table(place: Installation) -> None:
    place.execute("DROP TABLE reject")


def plant_rejects(place: Installation) -> None:
    old = NOW - DAY_MS - 9000
    for at, reason in ((NOW, "seq: must be at most 255"), (NOW, "x" * 100), (NOW, "x" * 100), (old, "old")):
        place.execute(
            "INSERT INTO reject VALUES (NULL, {at}, 5, 't', '{reason}', x'00')", at=at, reason=reason
        )


def plant_unseen_gateways(place: Installation) -> None:
    for number in range(6, 10):
        place.execute(
            "INSERT INTO device VALUES ({n}, 'a', 'a', 0, 1, 0, '', 0, '', NULL, NULL, 0, 2, 2);"
            "INSERT INTO gateway (device, claimed_at) VALUES ({n}, 2)",
            n=number,
        )


def plant_old_backup(place: Installation) -> None:
    place.execute("UPDATE backup SET moment = {at}", at=NOW - 9 * DAY_MS)


def plant_backup_without_samples(place: Installation) -> None:
    plant_old_backup(place)
    place.execute("INSERT INTO backup VALUES ({at}, {at}, 5, 0)", at=NOW)


def plant_missed_backup(place: Installation) -> None:
    for day in range(2, 5):
        place.execute("INSERT INTO backup VALUES ({at}, {at}, 5, 1)", at=NOW - day * DAY_MS)
    place.execute("UPDATE backup SET moment = moment - {hours} * 3600000", hours=3)


def plant_damaged_table(place: Installation) -> None:
    path = place.data / "meshfleet.sqlite"
    with closing(sqlite3.connect(path)) as database:
        database.execute("PRAGMA journal_mode = DELETE")  # the page must not also be in the write-ahead log
        (page,) = database.execute("SELECT rootpage FROM sqlite_schema WHERE name = 'gateway'").fetchone()
        (size,) = database.execute("PRAGMA page_size").fetchone()
    with path.open("r+b") as file:
        file.seek((page - 1) * size)
        file.write(bytes(size))


def plant_damaged_segment(place: Installation) -> None:
    (place.data / "samples" / "00000007.samples").write_bytes(b"no samples" * 100)


def plant_missing_segment(place: Installation) -> None:
    (place.data / "samples" / "00000007.samples").unlink()


def plant_damaged_image(place: Installation) -> None:
    (place.data / "images" / IMAGE_NAME).write_bytes(b"other")


def plant_missing_image(place: Installation) -> None:
    (place.data / "images" / IMAGE_NAME).unlink()


def plant_flipped_byte_of_plan(place: Installation) -> None:
    place.execute("UPDATE plan_chunk SET content = x'{content}' WHERE position = 1", content=b"/?".hex())


def plant_many_connections(place: Installation) -> None:
    place.limits["connections"] = 10**9


def plant_used_port(place: Installation) -> None:
    listener = place.cleanup.enter_context(socket.create_server(("127.0.0.1", 0)))
    place.settings["http"] = f"127.0.0.1:{listener.getsockname()[1]}"


def plant_deaf_service(place: Installation) -> None:
    place.lock()
    place.settings |= {"http": "127.0.0.1:0"}


def plant_dead_url(place: Installation) -> None:
    place.lock()
    place.settings |= {"public-url": "http://127.0.0.1:1", "http": "127.0.0.1:0", "mqtt": "off"}


def plant_untrusted_proxy(place: Installation) -> None:
    plant_answer(place, b"", HTTPStatus.OK, "ignored")


def plant_silent_proxy(place: Installation) -> None:
    plant_answer(place, b"", HTTPStatus.OK, "absent")
    place.settings["trusted-proxies"] = "127.0.0.1"


def plant_unready_service(place: Installation) -> None:
    plant_answer(place, b'{"status": "unavailable", "reasons": [{"code": "disk-full", "text": "x"}]}')


def plant_other_program(place: Installation) -> None:
    plant_answer(place, b"<html>Bad gateway</html>")


def plant_answer(
    place: Installation,
    body: bytes,
    status: HTTPStatus = HTTPStatus.SERVICE_UNAVAILABLE,
    forwarding: str = "absent",
) -> None:
    place.lock()
    url = place.cleanup.enter_context(serve_body(body, status, forwarding))
    place.settings |= {"public-url": url, "http": "127.0.0.1:0", "mqtt": "off"}


@contextmanager
def serve_body(body: bytes, status: HTTPStatus, forwarding: str) -> Iterator[str]:
    """Answer every request with a status, a body, and what became of `X-Forwarded-For`."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:  # named by the library
            self.send_response(status)
            self.send_header("X-Meshfleet-Forwarding", forwarding)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def plant_dead_broker(place: Installation) -> None:
    del place.settings["mqtt"]
    place.settings["broker"] = "mqtt://anna:topsecret@127.0.0.1:1"


def plant_wrong_names(place: Installation) -> None:
    place.issue_certificate("fleet.example.org", days=6)
    place.settings |= {
        "public-url": "https://fleet.example.org:8443",
        "public-mqtt": "mqtts://10.0.0.5",
        "mqtt-tls": "127.0.0.1:0",
    }


OWN_NAME = Path(f"/proc/{os.getpid()}/comm").read_text().strip()
OPENSSL = "openssl x509 -in {place.cert} -noout -dates -ext subjectAltName"


@each_row(
    ("plant", "finding", "text", "command"),
    [
        (
            plant_nothing_there,
            "fail data",
            "{place.data} does not exist; the service creates it at its first start",
            "meshfleet serve --data {place.data}",
        ),
        (
            lambda place: place.set_mode(0o750),
            "fail data",
            ("{place.data}, 0750, owner {owner}, no service is running; other users can access it"),
            "chmod 700 {place.data}",
        ),
        (
            plant_unfinished_restore,
            "fail data",
            ("a restore to {place.data} was interrupted; run `meshfleet restore --replace` again"),
            "meshfleet restore FILE --replace",
        ),
        (
            plant_unreadable_lock,
            "fail data",
            (
                "the lock of {place.data} cannot be read: Too many levels of symbolic links: "
                "{place.data}/meshfleet.lock"
            ),
            "sudo meshfleet doctor",
        ),
        (
            plant_no_database,
            "fail database",
            ("SQLite in {place.data}: there is no database; give the data directory with --data"),
            "meshfleet serve --data {place.data} --log-level info",
        ),
        (
            plant_damaged_database,
            "fail database",
            (
                "database-unreachable: SQLite in {place.data}: file is not a database; "
                "restore the newest backup"
            ),
            "meshfleet restore FILE --replace",
        ),
        (
            plant_damaged_table,
            "fail gateways",
            "could not be checked: database disk image is malformed; restore the newest backup",
            "meshfleet restore FILE --replace",
        ),
        (
            lambda place: place.execute("UPDATE alembic_version SET version_num = '0003'"),
            "warn schema",
            (f"0003 is older than that of this Meshfleet, {CURRENT}: upgraded at the next start"),
            "meshfleet backup DIRECTORY",
        ),
        (
            lambda place: place.execute("UPDATE alembic_version SET version_num = '9999'"),
            "fail schema",
            (f"9999 is of a newer Meshfleet; this one knows {CURRENT}: run the newer version"),
            "meshfleet --version",
        ),
        (
            lambda place: place.execute("DROP TABLE alembic_version"),
            "warn schema",
            "no tables of Meshfleet; the service creates them at its next start",
            "meshfleet serve",
        ),
        (
            plant_missing_table,
            "fail rejects",
            "could not be checked: no such table: reject",
            "meshfleet doctor --help",
        ),
        (
            plant_rejects,
            "warn rejects",
            f"3 in the last 24 hours: 2 x {'x' * 80}; 1 x seq: must be at most 255",
            'curl -H "Authorization: Bearer $TOKEN" URL/api/v1/rejects',
        ),
        (
            plant_old_backup,
            "warn backup",
            "9 days ago, 2 MB, with samples",
            "meshfleet backup DIRECTORY",
        ),
        (
            plant_backup_without_samples,
            "warn backup",
            "9 days ago, 2 MB, with samples",
            "meshfleet backup DIRECTORY",
        ),
        (
            plant_missed_backup,
            "warn backup",
            "1 days ago, 2 MB, with samples; before, they were daily",
            "meshfleet backup DIRECTORY",
        ),
        (
            plant_unseen_gateways,
            "warn gateways",
            "4 of 5 claimed, never seen: 000000000006 000000000007 000000000008 …",
            "meshfleet gateways list",
        ),
        (
            plant_damaged_segment,
            "fail samples",
            "samples in 00000007.samples cannot be read: file is not a database",
            "meshfleet restore --check FILE",
        ),
        (
            plant_missing_segment,
            "fail samples",
            "samples/00000007.samples is missing",
            "meshfleet restore --check FILE",
        ),
        (
            plant_damaged_image,
            "fail images",
            "the image of model 0018, version 1.0.0 is damaged: its SHA-256 differs",
            "meshfleet firmware list",
        ),
        (
            plant_missing_image,
            "fail images",
            (
                "the image of model 0018, version 1.0.0 is damaged: "
                "it cannot be read: No such file or directory"
            ),
            "meshfleet firmware list",
        ),
        (
            plant_flipped_byte_of_plan,
            "fail plans",
            (
                "the plan of floor -1 of Depot (site-000000000000000b) is damaged: "
                "its SHA-256 differs; upload it again"
            ),
            "meshfleet sites show site-000000000000000b",
        ),
        (
            plant_many_connections,
            "warn descriptors",
            (
                "{limit} open files are allowed; limits.connections = 1000000000 needs "
                "4000000000: the service accepts fewer connections"
            ),
            "ulimit -n 4000000000  # systemd: LimitNOFILE=4000000000",
        ),
        (
            plant_used_port,
            "fail listeners",
            f"http {{place.settings[http]}} is in use by pid {os.getpid()} ({OWN_NAME})",
            "meshfleet serve --http HOST:PORT",
        ),
        (
            plant_deaf_service,
            "fail listeners",
            (
                f"mqtt {{place.settings[mqtt]}}: pid {os.getpid()} does not accept "
                "connections: Connection refused"
            ),
            "meshfleet serve --mqtt HOST:PORT",
        ),
        (
            plant_dead_url,
            "fail public-url",
            "http://127.0.0.1:1 does not respond: Connection refused",
            "curl -i http://127.0.0.1:1/readyz",
        ),
        (
            plant_unready_service,
            "fail public-url",
            "{place.settings[public-url]} is not ready: disk-full",
            "curl -i {place.settings[public-url]}/readyz",
        ),
        (
            plant_other_program,
            "fail public-url",
            ("{place.settings[public-url]} responds with HTTP status 503, not as a Meshfleet service"),
            "curl -i {place.settings[public-url]}/readyz",
        ),
        (
            plant_untrusted_proxy,
            "warn proxy",
            "X-Forwarded-For arrives, but its sender is not in trusted-proxies: all clients share a limit",
            "meshfleet serve --trusted-proxies LIST",
        ),
        (
            plant_silent_proxy,
            "warn proxy",
            "trusted-proxies is set, but no X-Forwarded-For arrives through public-url",
            "curl -i {place.settings[public-url]}/readyz",
        ),
        (
            plant_dead_broker,
            "fail broker",
            "mqtt://127.0.0.1:1: Connection refused",
            "meshfleet broker-config mosquitto --help",
        ),
        (
            plant_wrong_names,
            "fail certificate",
            (
                "chain.pem ends in 6 days; names fleet.example.org; "
                "does not name 10.0.0.5, the host of public-mqtt"
            ),
            OPENSSL,
        ),
        (
            lambda place: place.issue_certificate("*.example.org", "10.0.0.5", days=13),
            "warn certificate",
            "chain.pem ends in 13 days; names *.example.org, 10.0.0.5",
            OPENSSL,
        ),
        (
            lambda place: place.issue_certificate("a.example.org", days=2),
            "fail certificate",
            "chain.pem ends in 2 days; names a.example.org",
            OPENSSL,
        ),
        (
            lambda place: place.issue_certificate("a.example.org", days=-2),
            "fail certificate",
            "chain.pem: certificate has expired",
            OPENSSL,
        ),
    ],
)
def test_a_planted_fault_is_found(
    create_installation: Callable[[], Installation],
    plant: Callable[[Installation], object],
    finding: str,
    text: str,
    command: str,
) -> None:
    place = create_installation()
    plant(place)
    result = place.examine("--deep")
    lines = without_clock(result.stdout)
    faults = [each for each in lines if not each.startswith(("ok", "      -> "))]
    values = {
        "place": place,
        "owner": place.config.parent.owner(),
        "limit": resource.getrlimit(resource.RLIMIT_NOFILE)[1],
    }
    level, check = finding.split()
    expected = f"{level:<6}{check:<20}{text.format(**values)}"
    assert faults[:1] == [expected], result.stdout + result.stderr
    assert lines[lines.index(expected) + 1] == f"      -> {command.format(**values)}"
    assert result.exit_code == any(each.startswith("fail") for each in faults)
    assert "topsecret" not in result.output


def test_a_growing_disk_is_foreseen(create_installation: Callable[[], Installation]) -> None:
    place = create_installation()
    day = NOW - NOW % DAY_MS - 3 * DAY_MS
    # Less than nothing: a difference of that size needs no files.
    place.execute("INSERT INTO storage_size VALUES ({day}, 'database', {size})", day=day, size=-(10**16))
    result = place.examine()
    pattern = r"fail  disk                .* of data, .* GB free; [0-9.]+ GB a day: full in 0 days"
    assert re.search(rf"(?m)^{pattern}\n      -> du -xh --max-depth=1 {place.data}$", result.stdout)


def test_an_index_that_lacks_rows_is_found(create_installation: Callable[[], Installation]) -> None:
    place = create_installation()
    change_index = (
        "PRAGMA writable_schema = ON; UPDATE sqlite_schema"
        " SET sql = 'CREATE INDEX extra_x ON extra (x){condition}' WHERE name = 'extra_x'"
    )
    place.execute("CREATE TABLE extra (x); CREATE INDEX extra_x ON extra (x)")
    place.execute(change_index, condition=" WHERE x > 5")
    place.execute("INSERT INTO extra VALUES (1)")
    place.execute(change_index, condition="")
    assert "fail  integrity           the database is damaged: " in place.examine("--deep").stdout


def test_wrong_settings_are_a_finding(create_installation: Callable[[], Installation]) -> None:
    place = create_installation()
    place.issue_certificate("a.example.org", days=90)
    place.cert.with_name("key.pem").write_text("no key")
    place.limits = {"conections": 5}
    result = place.examine()
    assert (result.exit_code, result.stdout.splitlines()[::2]) == (
        1,
        [
            (
                f"fail  settings            {place.config}: limits.conections: unknown setting; "
                "did you mean limits.connections?"
            ),
            (
                f"fail  certificate         {place.config}: tls-cert: {place.cert} is not a certificate in"
                f" PEM with its key in {place.cert.with_name('key.pem')}: the files contain none"
            ),
        ],
    )


def test_an_external_broker_accepts_or_refuses_the_login(
    create_installation: Callable[[], Installation], tmp_path: Path
) -> None:
    place = create_installation()
    del place.settings["mqtt"]
    for setting, answer in (("true", "ok"), ("false", "fail")):
        folder = tmp_path / setting
        folder.mkdir()
        with Mosquitto(folder, f"allow_anonymous {setting}") as broker:
            place.settings["broker"] = f"mqtt://anna:topsecret@{broker.address.host}:{broker.address.port}"
            result = place.examine()
        assert f"{answer:<6}broker              mqtt://127.0.0.1:" in result.stdout
        assert "topsecret" not in result.output


def test_influx_answers_or_not(create_installation: Callable[[], Installation]) -> None:
    place = create_installation()
    place.settings["influx.token"] = "topsecret"
    expected = {
        204: "ok    influx              {} accepts samples",
        401: "fail  influx              {} answers",
    }
    for status, line in expected.items():
        with line_server(lambda _, status=status: (status, "")) as server:  # type: ignore[misc] # a default value
            place.settings["influx.url"] = server.url
            result = place.examine()
        assert line.format(server.url) in result.stdout
        assert "topsecret" not in result.output
        assert "does not answer: Connection refused" in place.examine().stdout


def test_a_data_directory_of_a_running_service_is_examined(
    create_installation: Callable[[], Installation],
) -> None:
    place = create_installation()
    with Program(
        *("serve", "--data", str(place.data), "--http", place.settings["http"]),
        MESHFLEET_MQTT=place.settings["mqtt"],
    ) as service:
        service.read_line()
        eventually(lambda: httpx.get(f"http://{place.settings['http']}/readyz").status_code == 200)
        lines = place.examine("--deep").stdout.splitlines()
    owner = place.data.owner()
    http, mqtt = place.settings["http"], place.settings["mqtt"]
    assert f"ok    data                {place.data}, 0700, owner {owner}, held by pid " in "\n".join(lines)
    assert f"ok    listeners           http {http}, mqtt {mqtt}: accepting connections" in lines
    assert f"ok    public-url          http://{http} is ready" in lines
    assert "ok    integrity           the database is intact" in lines
    assert not [line for line in lines if line.startswith("fail")]
