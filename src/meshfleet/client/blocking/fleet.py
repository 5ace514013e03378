"""`Fleet` for programs without an event loop."""

from __future__ import annotations

from typing import TYPE_CHECKING

from meshfleet.client.blocking.event_loop import EventLoopThread
from meshfleet.client.blocking.proxies import BlockingMethod, ContextProxy, IteratorMethod, Proxy
from meshfleet.client.rest import accounts, devices, firmware, fleet, jobs, requests, samples
from meshfleet.client.rest import devices as gateways
from meshfleet.client.rest import devices as labels
from meshfleet.client.rest import fleet as operations

if TYPE_CHECKING:
    from pathlib import Path

    from meshfleet.client.rest.session import Session


class Devices(Proxy[devices.Devices]):
    """The devices of a fleet, gateways included. Each is named by MAC or device id, in either case."""

    list = IteratorMethod(devices.Devices.list)
    summary = BlockingMethod(devices.Devices.summary)
    show = BlockingMethod(devices.Devices.show)
    rename = BlockingMethod(devices.Devices.rename)
    forget = BlockingMethod(devices.Devices.forget)
    label = BlockingMethod(devices.Devices.label)
    unlabel = BlockingMethod(devices.Devices.unlabel)
    connectivity = IteratorMethod(devices.Devices.connectivity)
    holes = IteratorMethod(devices.Devices.holes)
    updates = IteratorMethod(devices.Devices.updates)


class Labels(Proxy[labels.Labels]):
    """All labels of a fleet. What is on a device is changed at `fleet.devices`."""

    list = IteratorMethod(labels.Labels.list)
    add = BlockingMethod(labels.Labels.add)
    remove = BlockingMethod(labels.Labels.remove)


class Gateways(Proxy[gateways.Gateways]):
    """The claimed gateways of a fleet. Each is named by MAC or device id, in either case."""

    list = IteratorMethod(gateways.Gateways.list)
    show = BlockingMethod(gateways.Gateways.show)
    claim = BlockingMethod(gateways.Gateways.claim)
    rotate = BlockingMethod(gateways.Gateways.rotate)
    release = BlockingMethod(gateways.Gateways.release)


class Samples(Proxy[samples.Samples]):
    """What the devices of a fleet reported. Each is named by MAC or device id, in either case."""

    list = IteratorMethod(samples.Samples.list)
    csv = IteratorMethod(samples.Samples.csv)
    series = BlockingMethod(samples.Samples.series)
    links = BlockingMethod(samples.Samples.links)
    rejects = IteratorMethod(samples.Samples.rejects)


class Requests(Proxy[requests.Requests]):
    """Requests to devices. An identifier in hex takes the raw operation, a name the decoded one (request-34).

    An answer is returned whatever its status: see `meshfleet.client.check`. No answer is an `Unanswered`.
    """

    read = BlockingMethod(requests.Requests.read)
    write = BlockingMethod(requests.Requests.write)
    apiversion = BlockingMethod(requests.Requests.apiversion)
    ack = BlockingMethod(requests.Requests.ack)
    send = BlockingMethod(requests.Requests.send)
    post = BlockingMethod(requests.Requests.post)
    show = BlockingMethod(requests.Requests.show)
    list = IteratorMethod(requests.Requests.list)


class FirmwareImages(Proxy[firmware.FirmwareImages]):
    """The firmware of a fleet. Each is named by its id, or by its record."""

    list = IteratorMethod(firmware.FirmwareImages.list)
    upload = BlockingMethod(firmware.FirmwareImages.upload)
    show = BlockingMethod(firmware.FirmwareImages.show)
    download = IteratorMethod(firmware.FirmwareImages.download)
    save = BlockingMethod(firmware.FirmwareImages.save)
    release = BlockingMethod(firmware.FirmwareImages.release)
    withdraw = BlockingMethod(firmware.FirmwareImages.withdraw)
    remove = BlockingMethod(firmware.FirmwareImages.remove)


class Jobs(Proxy[jobs.Jobs]):
    """The update jobs of a fleet. Each is named by its id, or by what was told of it."""

    create = BlockingMethod(jobs.Jobs.create)
    dry_run = BlockingMethod(jobs.Jobs.dry_run)
    list = IteratorMethod(jobs.Jobs.list)
    show = BlockingMethod(jobs.Jobs.show)
    summary = BlockingMethod(jobs.Jobs.summary)
    executions = IteratorMethod(jobs.Jobs.executions)
    execution = BlockingMethod(jobs.Jobs.execution)
    apply = BlockingMethod(jobs.Jobs.apply)
    pause = BlockingMethod(jobs.Jobs.pause)
    resume = BlockingMethod(jobs.Jobs.resume)
    cancel = BlockingMethod(jobs.Jobs.cancel)
    retry = BlockingMethod(jobs.Jobs.retry)
    delete = BlockingMethod(jobs.Jobs.delete)
    watch = IteratorMethod(jobs.Jobs.watch)


class Users(Proxy[accounts.Users]):
    """The people who may log in."""

    list = IteratorMethod(accounts.Users.list)
    add = BlockingMethod(accounts.Users.add)
    show = BlockingMethod(accounts.Users.show)
    change = BlockingMethod(accounts.Users.change)
    remove = BlockingMethod(accounts.Users.remove)


class ApiKeys(Proxy[accounts.ApiKeys]):
    """Keys for programs."""

    list = IteratorMethod(accounts.ApiKeys.list)
    issue = BlockingMethod(accounts.ApiKeys.issue)
    revoke = BlockingMethod(accounts.ApiKeys.revoke)


class Audit(Proxy[accounts.Audit]):
    """The audit log: one row for every change that somebody made."""

    list = IteratorMethod(accounts.Audit.list)


class Operations(Proxy[operations.Operations]):
    """What those need who run a service. All but the figures is for everybody, and needs no login."""

    health = BlockingMethod(operations.Operations.health)
    ready = BlockingMethod(operations.Operations.ready)
    metrics = BlockingMethod(operations.Operations.metrics)
    openapi = BlockingMethod(operations.Operations.openapi)
    asyncapi = BlockingMethod(operations.Operations.asyncapi)


class Fleet(ContextProxy[fleet.Fleet]):
    """A service, as `with Fleet("https://fleet.example.org", user="me", password="…") as fleet`.

    It is the same as `meshfleet.client.Fleet`, but that every method waits. Any number of threads may use it.
    """

    def __init__(  # noqa: PLR0913 # by name, each may be left out
        self,
        url: str | None = None,
        *,
        user: str | None = None,
        password: str | None = None,
        token: str | None = None,
        session: Session | None = None,
        tls_ca: Path | None = None,
        timeout: float = 30.0,
    ) -> None:
        """`tls_ca` names who vouches for the service; `timeout` is in seconds, for one answer."""
        behind = fleet.Fleet(
            url, user=user, password=password, token=token, session=session, tls_ca=tls_ca, timeout=timeout
        )
        runner = EventLoopThread("Fleet")
        super().__init__(behind, runner)
        self.devices = Devices(behind.devices, runner)
        self.labels = Labels(behind.labels, runner)
        self.gateways = Gateways(behind.gateways, runner)
        self.samples = Samples(behind.samples, runner)
        self.requests = Requests(behind.requests, runner)
        self.firmware = FirmwareImages(behind.firmware, runner)
        self.jobs = Jobs(behind.jobs, runner)
        self.users = Users(behind.users, runner)
        self.api_keys = ApiKeys(behind.api_keys, runner)
        self.audit = Audit(behind.audit, runner)
        self.operations = Operations(behind.operations, runner)

    @property
    def session(self) -> Session | None:
        """The login as it is now, to be kept for later; None: we are not logged in."""
        return self._target.session

    log_in = BlockingMethod(fleet.Fleet.log_in)
    log_out = BlockingMethod(fleet.Fleet.log_out)
    me = BlockingMethod(fleet.Fleet.me)
    change_password = BlockingMethod(fleet.Fleet.change_password)
    catalogue = BlockingMethod(fleet.Fleet.catalogue)
    live = IteratorMethod(fleet.Fleet.live)
