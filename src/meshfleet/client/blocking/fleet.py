"""`Fleet` for programs without an event loop."""

from __future__ import annotations

from typing import TYPE_CHECKING

from meshfleet.client.blocking.faces import Deed, Door, Face, Walk
from meshfleet.client.blocking.running import Runner
from meshfleet.client.rest import (
    devices,
    firmware,
    fleet,
    gateways,
    jobs,
    labels,
    operations,
    people,
    requests,
    samples,
)

if TYPE_CHECKING:
    from pathlib import Path

    from meshfleet.client.rest.session import Session


class Devices(Face[devices.Devices]):
    """The devices of a fleet, gateways included. Each is named by MAC or device id, in either case."""

    list = Walk(devices.Devices.list)
    summary = Deed(devices.Devices.summary)
    show = Deed(devices.Devices.show)
    rename = Deed(devices.Devices.rename)
    forget = Deed(devices.Devices.forget)
    label = Deed(devices.Devices.label)
    unlabel = Deed(devices.Devices.unlabel)
    connectivity = Walk(devices.Devices.connectivity)
    holes = Walk(devices.Devices.holes)
    updates = Walk(devices.Devices.updates)


class Labels(Face[labels.Labels]):
    """All labels of a fleet. What is on a device is changed at `fleet.devices`."""

    list = Walk(labels.Labels.list)
    add = Deed(labels.Labels.add)
    remove = Deed(labels.Labels.remove)


class Gateways(Face[gateways.Gateways]):
    """The claimed gateways of a fleet. Each is named by MAC or device id, in either case."""

    list = Walk(gateways.Gateways.list)
    show = Deed(gateways.Gateways.show)
    claim = Deed(gateways.Gateways.claim)
    rotate = Deed(gateways.Gateways.rotate)
    release = Deed(gateways.Gateways.release)


class Samples(Face[samples.Samples]):
    """What the devices of a fleet reported. Each is named by MAC or device id, in either case."""

    list = Walk(samples.Samples.list)
    csv = Walk(samples.Samples.csv)
    series = Deed(samples.Samples.series)
    links = Deed(samples.Samples.links)
    rejects = Walk(samples.Samples.rejects)


class Requests(Face[requests.Requests]):
    """Requests to devices. An identifier in hex takes the raw operation, a name the decoded one (request-34).

    An answer is returned whatever its status: see `meshfleet.client.check`. No answer is an `Unanswered`.
    """

    read = Deed(requests.Requests.read)
    write = Deed(requests.Requests.write)
    apiversion = Deed(requests.Requests.apiversion)
    ack = Deed(requests.Requests.ack)
    send = Deed(requests.Requests.send)
    post = Deed(requests.Requests.post)
    show = Deed(requests.Requests.show)
    list = Walk(requests.Requests.list)


class Firmware(Face[firmware.Firmware]):
    """The firmware of a fleet. Each is named by its id, or by its record."""

    list = Walk(firmware.Firmware.list)
    upload = Deed(firmware.Firmware.upload)
    show = Deed(firmware.Firmware.show)
    download = Walk(firmware.Firmware.download)
    save = Deed(firmware.Firmware.save)
    release = Deed(firmware.Firmware.release)
    withdraw = Deed(firmware.Firmware.withdraw)
    remove = Deed(firmware.Firmware.remove)


class Jobs(Face[jobs.Jobs]):
    """The update jobs of a fleet. Each is named by its id, or by what was told of it."""

    create = Deed(jobs.Jobs.create)
    dry_run = Deed(jobs.Jobs.dry_run)
    list = Walk(jobs.Jobs.list)
    show = Deed(jobs.Jobs.show)
    summary = Deed(jobs.Jobs.summary)
    executions = Walk(jobs.Jobs.executions)
    execution = Deed(jobs.Jobs.execution)
    apply = Deed(jobs.Jobs.apply)
    pause = Deed(jobs.Jobs.pause)
    resume = Deed(jobs.Jobs.resume)
    cancel = Deed(jobs.Jobs.cancel)
    retry = Deed(jobs.Jobs.retry)
    delete = Deed(jobs.Jobs.delete)
    watch = Walk(jobs.Jobs.watch)


class Users(Face[people.Users]):
    """The people who may log in."""

    list = Walk(people.Users.list)
    add = Deed(people.Users.add)
    show = Deed(people.Users.show)
    change = Deed(people.Users.change)
    remove = Deed(people.Users.remove)


class ApiKeys(Face[people.ApiKeys]):
    """Keys for programs."""

    list = Walk(people.ApiKeys.list)
    issue = Deed(people.ApiKeys.issue)
    revoke = Deed(people.ApiKeys.revoke)


class Audit(Face[people.Audit]):
    """The audit log: one row for every change that somebody made."""

    list = Walk(people.Audit.list)


class Operations(Face[operations.Operations]):
    """What those need who run a service. All but the figures is for everybody, and needs no login."""

    health = Deed(operations.Operations.health)
    ready = Deed(operations.Operations.ready)
    metrics = Deed(operations.Operations.metrics)
    openapi = Deed(operations.Operations.openapi)
    asyncapi = Deed(operations.Operations.asyncapi)


class Fleet(Door[fleet.Fleet]):
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
        runner = Runner("Fleet")
        super().__init__(behind, runner)
        self.devices = Devices(behind.devices, runner)
        self.labels = Labels(behind.labels, runner)
        self.gateways = Gateways(behind.gateways, runner)
        self.samples = Samples(behind.samples, runner)
        self.requests = Requests(behind.requests, runner)
        self.firmware = Firmware(behind.firmware, runner)
        self.jobs = Jobs(behind.jobs, runner)
        self.users = Users(behind.users, runner)
        self.api_keys = ApiKeys(behind.api_keys, runner)
        self.audit = Audit(behind.audit, runner)
        self.operations = Operations(behind.operations, runner)

    @property
    def session(self) -> Session | None:
        """The login as it is now, to be kept for later; None: we are not logged in."""
        return self._behind.session

    log_in = Deed(fleet.Fleet.log_in)
    log_out = Deed(fleet.Fleet.log_out)
    me = Deed(fleet.Fleet.me)
    change_password = Deed(fleet.Fleet.change_password)
    catalogue = Deed(fleet.Fleet.catalogue)
    live = Walk(fleet.Fleet.live)
