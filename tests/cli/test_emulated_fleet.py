"""Start, failure and end of emulated fleets on the command line."""

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


# --- End ---


@pytest.mark.parametrize("sig", [SIGINT, SIGTERM])
def test_a_signal_disconnects_and_ends_a_gateway(sig: Signals, tmp_path: Path) -> None:
    with (
        Mosquitto(tmp_path) as broker,
        Program("gateway", "--mac", MAC, "--broker", broker_url(broker)) as program,
    ):
        program.read_line()
        code, _, errors = program.wait_for_exit(sig)
        assert (code, errors) == (0, "")
        assert wait_for_log(tmp_path, DISCONNECTED_LOG) == [MAC]


@pytest.mark.parametrize("sig", [SIGINT, SIGTERM])
def test_a_signal_disconnects_all_gateways_of_a_simulation(sig: Signals, tmp_path: Path) -> None:
    options = ["simulate", "--gateways", "3", "--devices", "2", "--rate", "50"]
    with (
        Mosquitto(tmp_path) as broker,
        PahoListener(broker) as listener,
        Program(*options, "--broker", broker_url(broker)) as program,
    ):
        gateways = {listener.receive("mt/gateway/.*").topic.split("/")[2]}
        code, _, errors = program.wait_for_exit(sig)
        assert (code, errors) == (0, "")
        disconnected = wait_for_log(tmp_path, DISCONNECTED_LOG, 3)
        assert len(set(disconnected)) == 3
        assert gateways <= set(disconnected)


def test_a_signal_ends_a_gateway_whose_broker_is_down(tmp_path: Path) -> None:
    with (
        Mosquitto(tmp_path) as broker,
        Program("gateway", "--mac", MAC, "--broker", broker_url(broker)) as program,
    ):
        program.read_line()
        broker.stop()
        code, _, errors = program.wait_for_exit(SIGTERM)
    assert code == 0
    assert "Traceback" not in errors


@pytest.mark.parametrize("sig", [SIGINT, SIGTERM])
def test_a_signal_ends_a_gateway_that_is_still_connecting(sig: Signals) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        server.settimeout(30)
        host, port = server.getsockname()
        with Program("gateway", "--mac", MAC, "--broker", f"mqtt://{host}:{port}") as program:
            connection, _ = server.accept()
            with closing(connection):
                assert connection.recv(1) == b"\x10"  # CONNECT, which gets no CONNACK
                code, output, errors = program.wait_for_exit(sig)
    assert (code, output, errors) == (0, "", "")


@pytest.mark.parametrize("sig", [SIGINT, SIGTERM])
def test_a_signal_ends_a_simulation_that_is_still_claiming_its_gateways(sig: Signals) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        server.settimeout(30)
        host, port = server.getsockname()
        options = ["--service", f"http://{host}:{port}", "--user", "ada", "--password", "correct-horse"]
        with Program("simulate", *options) as program:
            connection, _ = server.accept()
            with closing(connection):
                assert connection.recv(4) == b"POST"  # which gets no response
                code, output, errors = program.wait_for_exit(sig)
    assert (code, output, errors) == (0, "", "")


def test_a_gateway_outlives_its_broker(tmp_path: Path) -> None:
    options = ["gateway", "--mac", MAC, "--speed", "20"]
    with Mosquitto(tmp_path) as broker, Program(*options, "--broker", broker_url(broker)) as program:
        program.read_line()
        broker.stop()
        broker.start()
        with PahoListener(broker) as listener:
            listener.receive(f"mt/gateway/{MAC}/.*")
        assert program.wait_for_exit(SIGTERM)[0] == 0


# --- Failures ---


def test_many_gateways_with_the_same_error_print_it_once() -> None:
    result = run_command(
        "simulate", "--gateways", "20", "--devices", "0", "--broker", f"mqtt://127.0.0.1:{free_port()}"
    )
    assert result.exit_code == 1
    assert len(result.output.splitlines()) == 1
    assert "Connection refused" in result.output


def test_two_gateways_with_the_same_mac_displace_each_other_and_keep_running(tmp_path: Path) -> None:
    with Mosquitto(tmp_path) as broker:
        options = ["gateway", "--mac", MAC, "--json", "--broker", broker_url(broker)]
        with Program(*options) as first, Program(*options) as second:
            assert {json.loads(each.read_line())["gateway"] for each in (first, second)} == {MAC}
            results = [each.wait_for_exit(SIGTERM) for each in (first, second)]
    assert [code for code, _, _ in results] == [0, 0]
    assert "Traceback" not in "".join(errors for _, _, errors in results)


@pytest.mark.anyio
async def test_an_unexpected_error_is_raised_unchanged(tmp_path: Path) -> None:
    async def monitor(fleet: EmulatedFleet) -> None:
        await fleet.all_connected.wait()
        raise ZeroDivisionError

    with Mosquitto(tmp_path) as broker, pytest.raises(ExceptionGroup) as raised:
        await run_emulated_fleet(RealTimePace(SimulatedClock(0)), None, _PopulateWithOne(broker), monitor)
    assert raised.group_contains(ZeroDivisionError)


@pytest.mark.anyio
async def test_a_fleet_runs_until_its_monitor_returns(tmp_path: Path) -> None:
    connected: list[int] = []

    async def monitor(fleet: EmulatedFleet) -> None:
        await fleet.all_connected.wait()
        connected.append(sum(session.is_connected for session in fleet.uplinks))

    with Mosquitto(tmp_path) as broker:
        await run_emulated_fleet(RealTimePace(SimulatedClock(0)), None, _PopulateWithOne(broker), monitor)
        assert connected == [1]
        assert wait_for_log(tmp_path, DISCONNECTED_LOG) == [MAC]


class _PopulateWithOne:
    """Callable that adds one gateway to a fleet."""

    def __init__(self, broker: Mosquitto) -> None:
        self._address = BrokerAddress.parse(broker_url(broker))

    async def __call__(self, fleet: EmulatedFleet, _http: httpx.AsyncClient) -> None:
        gateway = GatewayEmulator(
            EmulatorSettings(mac=MAC), generate_site(MAC, devices=2, seed=1), SimulatedClock(0)
        )
        fleet.add(gateway, self._address)


# --- Files ---


def test_a_low_limit_of_open_files_is_reported() -> None:
    options = ["simulate", "--broker", f"mqtt://127.0.0.1:{free_port()}", "--gateways", "100"]
    with Program(*options, before="ulimit -n 120") as program:
        code, _, errors = program.wait_for_exit()
    assert (code, len(errors.splitlines())) == (1, 1)
    assert "100 connections need 300 open files; the system allows 120" in errors


def test_the_soft_limit_of_open_files_is_raised_as_far_as_needed() -> None:
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
