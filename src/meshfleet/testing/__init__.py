"""Emulated gateways and whole services for your own tests, in one line.

    with emulated_gateway(devices=3, speed=60) as gateway:
        subprocess.run(["my-program", "--broker", gateway.broker], check=True)

    async with emulated_gateway() as gateway, Mesh(gateway.broker) as mesh:
        assert (await mesh.read(gateway.mac, gateway.devices[0], "8000")).status == 0

    with running_fleet(gateways=2) as running:
        with Fleet(running.url, user=running.user, password=running.password) as fleet:
            assert len(list(fleet.gateways.list())) == 2

A pytest fixture takes two lines. With the scope of a session, the gateway is started only once:

    @pytest.fixture(scope="session")
    def gateway() -> Iterator[EmulatedGateway]:
        with emulated_gateway() as running:
            yield running

Everything listens on free ports of the loopback interface, and is stopped and deleted when the block ends.
"""

from meshfleet.testing.fleet import running_fleet
from meshfleet.testing.gateway import EmulatedGateway, emulated_gateway
from meshfleet.testing.handles import RunningFleet, RunningGateway

__all__ = ["EmulatedGateway", "RunningFleet", "RunningGateway", "emulated_gateway", "running_fleet"]
