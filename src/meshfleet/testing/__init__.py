"""Emulated gateways and whole services that run for the duration of a test.

    with emulated_gateway(devices=3, speed=60) as gateway:
        subprocess.run(["my-program", "--broker", gateway.broker], check=True)

    async with emulated_gateway() as gateway, Mesh(gateway.broker) as mesh:
        assert (await mesh.read(gateway.mac, gateway.devices[0], "8000")).status == 0

    with running_fleet(gateways=2) as running:
        with Fleet(running.url, user=running.user, password=running.password) as fleet:
            assert len(list(fleet.gateways.list())) == 2

In a pytest fixture with the scope `session`, the gateway is started only once for all tests:

    @pytest.fixture(scope="session")
    def gateway() -> Iterator[EmulatedGateway]:
        with emulated_gateway() as running:
            yield running

Brokers and services listen on free ports of the loopback interface. When the block ends, they are stopped,
and their data is deleted.
"""

from meshfleet.testing.fleet import running_fleet
from meshfleet.testing.gateway import EmulatedGateway, emulated_gateway
from meshfleet.testing.handles import RunningFleet, RunningGateway

__all__ = ["EmulatedGateway", "RunningFleet", "RunningGateway", "emulated_gateway", "running_fleet"]
