"""How a fleet on the command line starts, fails and ends."""

from __future__ import annotations

import json
import resource
import socket
import subprocess
import sys
from contextlib import closing
from signal import SIGINT, SIGTERM
from typing import TYPE_CHECKING

import pytest

from meshfleet.cli.emulated_fleet import run_emulated_fleet
from meshfleet.emulator import EmulatorSettings, GatewayEmulator, RealTimePace, SimulatedClock, generate_site
from meshfleet.mqtt.client import BrokerAddress
from meshfleet.protocol.ids import Mac
from tests.cli.programs import DISCONNECTED_LOG, PahoListener, Program, broker_url, run_command, wait_for_log
from tests.servers import Mosquitto, free_port

if TYPE_CHECKING:
    from pathlib import Path
    from signal import Signals

    import httpx

    from meshfleet.emulator import EmulatedFleet

MAC = Mac("d0cf5e000001")


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


# --- Its end ---


@pytest.mark.parametrize("how", [SIGINT, SIGTERM])
def test_a_signal_ends_a_gateway_that_takes_its_leave(how: Signals, tmp_path: Path) -> None:
    with (
        Mosquitto(tmp_path) as broker,
        Program("gateway", "--mac", MAC, "--broker", broker_url(broker)) as program,
    ):
        program.read_line()
        code, _, errors = program.wait_for_exit(how)
        assert (code, errors) == (0, "")
        assert wait_for_log(tmp_path, DISCONNECTED_LOG) == [MAC]


@pytest.mark.parametrize("how", [SIGINT, SIGTERM])
def test_a_signal_ends_all_gateways_of_a_simulation_in_order(how: Signals, tmp_path: Path) -> None:
    given = ["simulate", "--gateways", "3", "--devices", "2", "--rate", "50"]
    with (
        Mosquitto(tmp_path) as broker,
        PahoListener(broker) as ear,
        Program(*given, "--broker", broker_url(broker)) as program,
    ):
        gateways = {ear.receive("mt/gateway/.*").topic.split("/")[2]}
        code, _, errors = program.wait_for_exit(how)
        assert (code, errors) == (0, "")
        left = wait_for_log(tmp_path, DISCONNECTED_LOG, 3)
        assert len(set(left)) == 3
        assert gateways <= set(left)


def test_a_signal_ends_a_gateway_whose_broker_is_away(tmp_path: Path) -> None:
    with (
        Mosquitto(tmp_path) as broker,
        Program("gateway", "--mac", MAC, "--broker", broker_url(broker)) as program,
    ):
        program.read_line()
        broker.stop()
        code, _, errors = program.wait_for_exit(SIGTERM)
    assert code == 0
    assert "Traceback" not in errors


@pytest.mark.parametrize("how", [SIGINT, SIGTERM])
def test_a_signal_ends_a_gateway_that_is_still_connecting(how: Signals) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as silent:
        silent.settimeout(30)
        host, port = silent.getsockname()
        with Program("gateway", "--mac", MAC, "--broker", f"mqtt://{host}:{port}") as program:
            connection, _ = silent.accept()
            with closing(connection):
                assert connection.recv(1) == b"\x10"  # CONNECT, which nobody answers
                code, output, errors = program.wait_for_exit(how)
    assert (code, output, errors) == (0, "", "")


@pytest.mark.parametrize("how", [SIGINT, SIGTERM])
def test_a_signal_ends_a_simulation_that_is_still_claiming_its_gateways(how: Signals) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as silent:
        silent.settimeout(30)
        host, port = silent.getsockname()
        given = ["--service", f"http://{host}:{port}", "--user", "ada", "--password", "correct-horse"]
        with Program("simulate", *given) as program:
            connection, _ = silent.accept()
            with closing(connection):
                assert connection.recv(4) == b"POST"  # which nobody answers
                code, output, errors = program.wait_for_exit(how)
    assert (code, output, errors) == (0, "", "")


def test_a_gateway_outlives_its_broker(tmp_path: Path) -> None:
    given = ["gateway", "--mac", MAC, "--speed", "20"]
    with Mosquitto(tmp_path) as broker, Program(*given, "--broker", broker_url(broker)) as program:
        program.read_line()
        broker.stop()
        broker.start()
        with PahoListener(broker) as ear:
            ear.receive(f"mt/gateway/{MAC}/.*")
        assert program.wait_for_exit(SIGTERM)[0] == 0


# --- Its failures ---


def test_many_gateways_with_the_same_trouble_make_one_sentence() -> None:
    result = run_command(
        "simulate", "--gateways", "20", "--devices", "0", "--broker", f"mqtt://127.0.0.1:{free_port()}"
    )
    assert result.exit_code == 1
    assert len(result.output.splitlines()) == 1
    assert "Connection refused" in result.output


def test_two_gateways_with_the_same_mac_push_each_other_off_and_live_on(tmp_path: Path) -> None:
    with Mosquitto(tmp_path) as broker:
        given = ["gateway", "--mac", MAC, "--json", "--broker", broker_url(broker)]
        with Program(*given) as first, Program(*given) as second:
            assert {json.loads(each.read_line())["gateway"] for each in (first, second)} == {MAC}
            ends = [each.wait_for_exit(SIGTERM) for each in (first, second)]
    assert [code for code, _, _ in ends] == [0, 0]
    assert "Traceback" not in "".join(errors for _, _, errors in ends)


@pytest.mark.anyio
async def test_an_error_that_nobody_expects_is_shown_whole(tmp_path: Path) -> None:
    async def watch(fleet: EmulatedFleet) -> None:
        await fleet.all_connected.wait()
        raise ZeroDivisionError

    with Mosquitto(tmp_path) as broker, pytest.raises(ExceptionGroup) as raised:
        await run_emulated_fleet(RealTimePace(SimulatedClock(0)), None, _filled(broker), watch)
    assert raised.group_contains(ZeroDivisionError)


@pytest.mark.anyio
async def test_a_fleet_runs_until_nobody_watches_it(tmp_path: Path) -> None:
    seen: list[int] = []

    async def watch(fleet: EmulatedFleet) -> None:
        await fleet.all_connected.wait()
        seen.append(sum(session.is_connected for session in fleet.uplinks))

    with Mosquitto(tmp_path) as broker:
        await run_emulated_fleet(RealTimePace(SimulatedClock(0)), None, _filled(broker), watch)
        assert seen == [1]
        assert wait_for_log(tmp_path, DISCONNECTED_LOG) == [MAC]


class _filled:  # noqa: N801 # it is called like a function
    """Fills a fleet with one gateway."""

    def __init__(self, broker: Mosquitto) -> None:
        self._address = BrokerAddress.parse(broker_url(broker))

    async def __call__(self, fleet: EmulatedFleet, _http: httpx.AsyncClient) -> None:
        gateway = GatewayEmulator(
            EmulatorSettings(mac=MAC), generate_site(MAC, devices=2, seed=1), SimulatedClock(0)
        )
        fleet.add(gateway, self._address)


# --- Files ---


def test_a_system_that_allows_too_few_files_is_told_apart() -> None:
    given = ["simulate", "--broker", f"mqtt://127.0.0.1:{free_port()}", "--gateways", "100"]
    with Program(*given, before="ulimit -n 120") as program:
        code, _, errors = program.wait_for_exit()
    assert (code, len(errors.splitlines())) == (1, 1)
    assert "100 connections need 300 open files; the system allows 120" in errors


def test_the_soft_limit_of_files_is_raised_as_far_as_needed() -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    script = f"""
import resource
from meshfleet.cli.file_limits import require_connections
resource.setrlimit(resource.RLIMIT_NOFILE, (64, {hard}))
require_connections(30)
print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
require_connections(10)
print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True, text=True)
    assert done.stdout.split() == ["230", "230"]
