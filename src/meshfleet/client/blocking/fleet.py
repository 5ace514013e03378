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
    """Devices of a fleet, including gateways. Methods accept a MAC or device id, in either case."""

    list = IteratorMethod(devices.Devices.list)
    summary = BlockingMethod(devices.Devices.summary)
    show = BlockingMethod(devices.Devices.show)
    rename = BlockingMethod(devices.Devices.rename)
    forget = BlockingMethod(devices.Devices.forget)
    label = BlockingMethod(devices.Devices.label)
    unlabel = BlockingMethod(devices.Devices.unlabel)
    connectivity = IteratorMethod(devices.Devices.connectivity)
    gaps = IteratorMethod(devices.Devices.gaps)
    updates = IteratorMethod(devices.Devices.updates)


class Labels(Proxy[labels.Labels]):
    """Label catalogue of a fleet. `fleet.devices` attaches labels to devices."""

    list = IteratorMethod(labels.Labels.list)
    add = BlockingMethod(labels.Labels.add)
    remove = BlockingMethod(labels.Labels.remove)


class Gateways(Proxy[gateways.Gateways]):
    """Claimed gateways of a fleet. Methods accept a MAC or device id, in either case."""

    list = IteratorMethod(gateways.Gateways.list)
    show = BlockingMethod(gateways.Gateways.show)
    claim = BlockingMethod(gateways.Gateways.claim)
    rotate = BlockingMethod(gateways.Gateways.rotate)
    release = BlockingMethod(gateways.Gateways.release)


class Samples(Proxy[samples.Samples]):
    """Samples and radio links of the devices of a fleet. Methods accept a MAC or device id."""

    list = IteratorMethod(samples.Samples.list)
    csv = IteratorMethod(samples.Samples.csv)
    series = BlockingMethod(samples.Samples.series)
    links = BlockingMethod(samples.Samples.links)
    rejects = IteratorMethod(samples.Samples.rejects)


class Requests(Proxy[requests.Requests]):
    """Requests to devices. A hex identifier selects the raw operation, a name the decoded one (request-34).

    Responses with an error status are returned too: `meshfleet.client.check` raises an error for them. If no
    response arrives, methods raise `Unanswered`.
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
    """Firmware records and images of a fleet. Methods accept the id of a record or the record itself."""

    list = IteratorMethod(firmware.FirmwareImages.list)
    upload = BlockingMethod(firmware.FirmwareImages.upload)
    show = BlockingMethod(firmware.FirmwareImages.show)
    download = IteratorMethod(firmware.FirmwareImages.download)
    save = BlockingMethod(firmware.FirmwareImages.save)
    release = BlockingMethod(firmware.FirmwareImages.release)
    withdraw = BlockingMethod(firmware.FirmwareImages.withdraw)
    remove = BlockingMethod(firmware.FirmwareImages.remove)


class Jobs(Proxy[jobs.Jobs]):
    """Update jobs of a fleet. Methods accept the id of a job or the `Job` itself."""

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
    """Users who may log in. Needs the role admin."""

    list = IteratorMethod(accounts.Users.list)
    add = BlockingMethod(accounts.Users.add)
    show = BlockingMethod(accounts.Users.show)
    change = BlockingMethod(accounts.Users.change)
    remove = BlockingMethod(accounts.Users.remove)


class ApiKeys(Proxy[accounts.ApiKeys]):
    """API keys, with which programs authenticate. Needs the role admin."""

    list = IteratorMethod(accounts.ApiKeys.list)
    issue = BlockingMethod(accounts.ApiKeys.issue)
    revoke = BlockingMethod(accounts.ApiKeys.revoke)


class Audit(Proxy[accounts.Audit]):
    """Audit log, with a row for every change. Needs the role admin."""

    list = IteratorMethod(accounts.Audit.list)


class Operations(Proxy[operations.Operations]):
    """Health, readiness, metrics and API documents of a service. Only the metrics need a login."""

    health = BlockingMethod(operations.Operations.health)
    ready = BlockingMethod(operations.Operations.ready)
    metrics = BlockingMethod(operations.Operations.metrics)
    openapi = BlockingMethod(operations.Operations.openapi)
    asyncapi = BlockingMethod(operations.Operations.asyncapi)


class Fleet(ContextProxy[fleet.Fleet]):
    """Meshfleet service: `with Fleet("https://fleet.example.org", user="me", password="…") as fleet`.

    Has the methods of `meshfleet.client.Fleet`, but each method waits for its result. Any number of threads
    may use the same object.
    """

    def __init__(  # noqa: PLR0913 # keyword-only, all optional
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
        """Create a client.

        `tls_ca` is a file of CA certificates. `timeout` is the number of seconds to wait for a response.
        """
        target = fleet.Fleet(
            url, user=user, password=password, token=token, session=session, tls_ca=tls_ca, timeout=timeout
        )
        loop_thread = EventLoopThread("Fleet")
        super().__init__(target, loop_thread)
        self.devices = Devices(target.devices, loop_thread)
        self.labels = Labels(target.labels, loop_thread)
        self.gateways = Gateways(target.gateways, loop_thread)
        self.samples = Samples(target.samples, loop_thread)
        self.requests = Requests(target.requests, loop_thread)
        self.firmware = FirmwareImages(target.firmware, loop_thread)
        self.jobs = Jobs(target.jobs, loop_thread)
        self.users = Users(target.users, loop_thread)
        self.api_keys = ApiKeys(target.api_keys, loop_thread)
        self.audit = Audit(target.audit, loop_thread)
        self.operations = Operations(target.operations, loop_thread)

    @property
    def session(self) -> Session | None:
        """Current login. Store it and pass it later as argument `session`. None if not logged in."""
        return self._target.session

    log_in = BlockingMethod(fleet.Fleet.log_in)
    log_out = BlockingMethod(fleet.Fleet.log_out)
    me = BlockingMethod(fleet.Fleet.me)
    change_password = BlockingMethod(fleet.Fleet.change_password)
    catalogue = BlockingMethod(fleet.Fleet.catalogue)
    live = IteratorMethod(fleet.Fleet.live)
