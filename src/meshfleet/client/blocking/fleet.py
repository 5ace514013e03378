"""Blocking `Fleet`: the client of a Meshfleet service for programs without an event loop."""

from __future__ import annotations

from typing import TYPE_CHECKING

from meshfleet.client.blocking.event_loop import EventLoopThread
from meshfleet.client.blocking.proxies import ContextProxy, Proxy, wrap_generator, wrap_method
from meshfleet.client.rest import (
    accounts,
    alarm_rules,
    alarms,
    channels,
    devices,
    firmware,
    fleet,
    jobs,
    requests,
    samples,
    sites,
)

if TYPE_CHECKING:
    from pathlib import Path

    from meshfleet.client.rest.session import Session


class Devices(Proxy[devices.Devices]):
    """Devices of a fleet, including gateways. Methods accept a MAC or device id, in upper or lower case."""

    list = wrap_generator(devices.Devices.list)
    summary = wrap_method(devices.Devices.summary)
    show = wrap_method(devices.Devices.show)
    rename = wrap_method(devices.Devices.rename)
    forget = wrap_method(devices.Devices.forget)
    label = wrap_method(devices.Devices.label)
    unlabel = wrap_method(devices.Devices.unlabel)
    place = wrap_method(devices.Devices.place)
    set_place = wrap_method(devices.Devices.set_place)
    remove_place = wrap_method(devices.Devices.remove_place)
    connectivity = wrap_generator(devices.Devices.connectivity)
    parents = wrap_generator(devices.Devices.parents)
    path = wrap_method(devices.Devices.path)
    diagnose = wrap_method(devices.Devices.diagnose)
    availability = wrap_method(devices.Devices.availability)
    connectivity_changes = wrap_generator(devices.Devices.connectivity_changes)
    position = wrap_method(devices.Devices.position)
    positions = wrap_generator(devices.Devices.positions)
    gaps = wrap_generator(devices.Devices.gaps)
    updates = wrap_generator(devices.Devices.updates)


class Labels(Proxy[devices.Labels]):
    """All device labels of a fleet. `fleet.devices` attaches labels to single devices."""

    list = wrap_generator(devices.Labels.list)
    add = wrap_method(devices.Labels.add)
    remove = wrap_method(devices.Labels.remove)


class Gateways(Proxy[devices.Gateways]):
    """Claimed gateways of a fleet. Methods accept a MAC or device id, in upper or lower case."""

    list = wrap_generator(devices.Gateways.list)
    show = wrap_method(devices.Gateways.show)
    claim = wrap_method(devices.Gateways.claim)
    claim_many = wrap_method(devices.Gateways.claim_many)
    topology = wrap_method(devices.Gateways.topology)
    rotate = wrap_method(devices.Gateways.rotate)
    release = wrap_method(devices.Gateways.release)


class Sites(Proxy[sites.Sites]):
    """Sites of a fleet, their floors, places and zones. Methods accept the id of a site or a `Site` object.

    Coordinates are in meters; `x` grows to the right of a plan and `y` upwards.
    """

    list = wrap_generator(sites.Sites.list)
    show = wrap_method(sites.Sites.show)
    create = wrap_method(sites.Sites.create)
    change = wrap_method(sites.Sites.change)
    remove = wrap_method(sites.Sites.remove)
    places = wrap_generator(sites.Sites.places)
    set_places = wrap_method(sites.Sites.set_places)
    upload_plan = wrap_method(sites.Sites.upload_plan)
    download_plan = wrap_method(sites.Sites.download_plan)
    remove_plan = wrap_method(sites.Sites.remove_plan)
    zones = wrap_generator(sites.Sites.zones)
    zone = wrap_method(sites.Sites.zone)
    create_zone = wrap_method(sites.Sites.create_zone)
    change_zone = wrap_method(sites.Sites.change_zone)
    remove_zone = wrap_method(sites.Sites.remove_zone)
    visits = wrap_generator(sites.Sites.visits)
    positions = wrap_method(sites.Sites.positions)
    nearest = wrap_method(sites.Sites.nearest)
    coverage = wrap_method(sites.Sites.coverage)
    survey_points = wrap_generator(sites.Sites.survey_points)
    survey_point = wrap_method(sites.Sites.survey_point)
    add_survey_point = wrap_method(sites.Sites.add_survey_point)
    remove_survey_point = wrap_method(sites.Sites.remove_survey_point)
    export_survey = wrap_method(sites.Sites.export_survey)
    import_survey = wrap_method(sites.Sites.import_survey)


class Samples(Proxy[samples.Samples]):
    """Samples and signal strengths of the devices of a fleet. Methods accept a MAC or device id."""

    list = wrap_generator(samples.Samples.list)
    csv = wrap_generator(samples.Samples.csv)
    export = wrap_generator(samples.Samples.export)
    series = wrap_method(samples.Samples.series)
    links = wrap_method(samples.Samples.links)
    rejects = wrap_generator(samples.Samples.rejects)


class Requests(Proxy[requests.Requests]):
    """Sends requests to devices through the service, and reads the history of requests.

    For an identifier given as hex, values are raw bytes; for one given as a name, they are decoded
    (request-34). Responses with an error status are returned too; pass them to `meshfleet.client.check` to
    raise an error. If no response arrives, methods raise `Unanswered`.
    """

    read = wrap_method(requests.Requests.read)
    write = wrap_method(requests.Requests.write)
    apiversion = wrap_method(requests.Requests.apiversion)
    ack = wrap_method(requests.Requests.ack)
    send = wrap_method(requests.Requests.send)
    post = wrap_method(requests.Requests.post)
    show = wrap_method(requests.Requests.show)
    list = wrap_generator(requests.Requests.list)


class FirmwareImages(Proxy[firmware.FirmwareImages]):
    """Firmware records and images of a fleet. Methods accept the id of a record or a `Firmware` object."""

    list = wrap_generator(firmware.FirmwareImages.list)
    upload = wrap_method(firmware.FirmwareImages.upload)
    show = wrap_method(firmware.FirmwareImages.show)
    download = wrap_generator(firmware.FirmwareImages.download)
    save = wrap_method(firmware.FirmwareImages.save)
    release = wrap_method(firmware.FirmwareImages.release)
    withdraw = wrap_method(firmware.FirmwareImages.withdraw)
    remove = wrap_method(firmware.FirmwareImages.remove)


class Jobs(Proxy[jobs.Jobs]):
    """Update jobs of a fleet. Methods accept the id of a job or a `Job` object."""

    create = wrap_method(jobs.Jobs.create)
    dry_run = wrap_method(jobs.Jobs.dry_run)
    list = wrap_generator(jobs.Jobs.list)
    show = wrap_method(jobs.Jobs.show)
    summary = wrap_method(jobs.Jobs.summary)
    executions = wrap_generator(jobs.Jobs.executions)
    execution = wrap_method(jobs.Jobs.execution)
    apply = wrap_method(jobs.Jobs.apply)
    pause = wrap_method(jobs.Jobs.pause)
    resume = wrap_method(jobs.Jobs.resume)
    cancel = wrap_method(jobs.Jobs.cancel)
    retry = wrap_method(jobs.Jobs.retry)
    delete = wrap_method(jobs.Jobs.delete)
    watch = wrap_generator(jobs.Jobs.watch)


class Users(Proxy[accounts.Users]):
    """User accounts of a fleet. All methods need the role admin."""

    list = wrap_generator(accounts.Users.list)
    add = wrap_method(accounts.Users.add)
    show = wrap_method(accounts.Users.show)
    change = wrap_method(accounts.Users.change)
    remove = wrap_method(accounts.Users.remove)


class ApiKeys(Proxy[accounts.ApiKeys]):
    """API keys, with which programs authenticate. All methods need the role admin."""

    list = wrap_generator(accounts.ApiKeys.list)
    issue = wrap_method(accounts.ApiKeys.issue)
    revoke = wrap_method(accounts.ApiKeys.revoke)


class Audit(Proxy[accounts.Audit]):
    """Audit log of a fleet, with a row for every change. Needs the role admin."""

    list = wrap_generator(accounts.Audit.list)


class Alarms(Proxy[alarms.Alarms]):
    """Alarms of a fleet. Methods accept the id of an alarm or an `Alarm` object."""

    attention = wrap_method(alarms.Alarms.attention)
    list = wrap_generator(alarms.Alarms.list)
    show = wrap_method(alarms.Alarms.show)
    members = wrap_generator(alarms.Alarms.members)
    events = wrap_generator(alarms.Alarms.events)
    acknowledge = wrap_method(alarms.Alarms.acknowledge)
    acknowledge_all = wrap_method(alarms.Alarms.acknowledge_all)
    unacknowledge = wrap_method(alarms.Alarms.unacknowledge)
    news = wrap_generator(alarms.Alarms.news)
    mark_seen = wrap_method(alarms.Alarms.mark_seen)
    add_note = wrap_method(alarms.Alarms.add_note)
    silence = wrap_method(alarms.Alarms.silence)
    unsilence = wrap_method(alarms.Alarms.unsilence)
    silences = wrap_method(alarms.Alarms.silences)
    show_silence = wrap_method(alarms.Alarms.show_silence)
    add_silence = wrap_method(alarms.Alarms.add_silence)
    change_silence = wrap_method(alarms.Alarms.change_silence)
    delete_silence = wrap_method(alarms.Alarms.delete_silence)


class AlarmRules(Proxy[alarm_rules.AlarmRules]):
    """Rules of alarms: built-in ones, which admins change, and those of users.

    Methods accept the id of a rule (`rule-3`, or the name of a built-in rule such as `battery-low`) or an
    `AlarmRuleBody` object.
    """

    list = wrap_method(alarm_rules.AlarmRules.list)
    show = wrap_method(alarm_rules.AlarmRules.show)
    create = wrap_method(alarm_rules.AlarmRules.create)
    replace = wrap_method(alarm_rules.AlarmRules.replace)
    change = wrap_method(alarm_rules.AlarmRules.change)
    reset = wrap_method(alarm_rules.AlarmRules.reset)
    delete = wrap_method(alarm_rules.AlarmRules.delete)
    preview = wrap_method(alarm_rules.AlarmRules.preview)


class Channels(Proxy[channels.Channels]):
    """Channels to which messages about alarms are sent, and the routes that lead to them.

    Methods accept the id of a channel or a `Channel` object. Changes need the role admin.
    """

    list = wrap_method(channels.Channels.list)
    show = wrap_method(channels.Channels.show)
    create = wrap_method(channels.Channels.create)
    change = wrap_method(channels.Channels.change)
    delete = wrap_method(channels.Channels.delete)
    test = wrap_method(channels.Channels.test)
    rotate_secret = wrap_method(channels.Channels.rotate_secret)
    deliveries = wrap_generator(channels.Channels.deliveries)
    retry = wrap_method(channels.Channels.retry)
    retry_dead = wrap_method(channels.Channels.retry_dead)
    routes = wrap_method(channels.Channels.routes)
    set_routes = wrap_method(channels.Channels.set_routes)


class Operations(Proxy[fleet.Operations]):
    """Health, readiness, metrics, settings, disk use and API documents of a service.

    `metrics` needs a login; `storage` and `reload` need the role admin.
    """

    health = wrap_method(fleet.Operations.health)
    ready = wrap_method(fleet.Operations.ready)
    metrics = wrap_method(fleet.Operations.metrics)
    reload = wrap_method(fleet.Operations.reload)
    storage = wrap_method(fleet.Operations.storage)
    openapi = wrap_method(fleet.Operations.openapi)
    asyncapi = wrap_method(fleet.Operations.asyncapi)


class Fleet(ContextProxy[fleet.Fleet]):
    """Meshfleet service: `with Fleet("https://fleet.example.org", user="me", password="…") as fleet`.

    Has the methods of `meshfleet.client.Fleet`, but each method blocks until its result arrives. Several
    threads may use one object.
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
        """Create a client of the service at `url`, without connecting.

        `tls_ca` is a PEM file of CA certificates. `timeout` is the number of seconds to wait for a response.
        """
        target = fleet.Fleet(
            url, user=user, password=password, token=token, session=session, tls_ca=tls_ca, timeout=timeout
        )
        loop_thread = EventLoopThread("Fleet")
        super().__init__(target, loop_thread)
        self.devices = Devices(target.devices, loop_thread)
        self.labels = Labels(target.labels, loop_thread)
        self.gateways = Gateways(target.gateways, loop_thread)
        self.sites = Sites(target.sites, loop_thread)
        self.samples = Samples(target.samples, loop_thread)
        self.requests = Requests(target.requests, loop_thread)
        self.firmware = FirmwareImages(target.firmware, loop_thread)
        self.jobs = Jobs(target.jobs, loop_thread)
        self.alarms = Alarms(target.alarms, loop_thread)
        self.alarm_rules = AlarmRules(target.alarm_rules, loop_thread)
        self.channels = Channels(target.channels, loop_thread)
        self.users = Users(target.users, loop_thread)
        self.api_keys = ApiKeys(target.api_keys, loop_thread)
        self.audit = Audit(target.audit, loop_thread)
        self.operations = Operations(target.operations, loop_thread)

    @property
    def session(self) -> Session | None:
        """Current login, which a later `Fleet` accepts as argument `session`; None if not logged in."""
        return self._target.session

    log_in = wrap_method(fleet.Fleet.log_in)
    log_out = wrap_method(fleet.Fleet.log_out)
    me = wrap_method(fleet.Fleet.me)
    change_password = wrap_method(fleet.Fleet.change_password)
    catalogue = wrap_method(fleet.Fleet.catalogue)
    live = wrap_generator(fleet.Fleet.live)
