/** Texts of the audit log: a name and a sentence for each action. */
import { deviceCountText } from "../device-count";
import { isolateBidi } from "../bidi";

/** Details that the service records with an action. */
type Detail = Readonly<Record<string, unknown>>;

/** Parts of a sentence before and after the name of the target. */
type SentenceParts = readonly [before: string, behind: string];

export interface Action {
  /** Name in the filter of actions. */
  readonly name: string;
  /** Return the two parts of the sentence. */
  readonly describe: (detail: Detail) => SentenceParts;
}

const createAction = (name: string, before: string, behind = ""): Action => ({ name, describe: () => [before, behind] });

/** Quote a name. An unset name becomes "no name". */
const quoteName = (value: unknown): string => (typeof value === "string" && value !== "" ? `“${isolateBidi(value)}”` : "no name");
const formatDetail = (value: unknown): string => (value === undefined || value === null ? "" : isolateBidi(String(value)));
const formatDeviceCount = (value: unknown): string => (typeof value === "number" ? deviceCountText(value) : "devices");

const formatPoint = (x: unknown, y: unknown): string => `at ${formatDetail(x)}, ${formatDetail(y)} m`;

/** Reasons for actions of the service itself; actions of users have none. */
const CAUSES: Readonly<Record<string, string>> = {
  ABORT_CRITERIA: "because too many updates failed",
  GATE: "after a wave, for a check",
  GATE_FAILED: "because too few devices of a wave succeeded",
  DEADLINE: "because its deadline had passed",
  RELEASE_WITHDRAWN: "because its firmware was withdrawn",
};
const describeCause = (cause: unknown): string => CAUSES[String(cause)] ?? "";

/** All audited actions, by area. */
export const groups: readonly { readonly name: string; readonly actions: Readonly<Record<string, Action>> }[] = [
  {
    name: "Signing in",
    actions: {
      "auth.login": createAction("Signed in", "Signed in"),
      "auth.logout": createAction("Signed out", "Signed out"),
    },
  },
  {
    name: "People",
    actions: {
      "user.create": { name: "Person added", describe: ({ role }) => ["Added", `as ${formatDetail(role)}`] },
      "user.change-role": {
        name: "Role changed",
        describe: ({ before, after }) => ["Changed the role of", `from ${formatDetail(before)} to ${formatDetail(after)}`],
      },
      "user.change-password": createAction("Password changed", "Changed the password of"),
      "user.remove": createAction("Person removed", "Removed", "from the users"),
    },
  },
  {
    name: "API keys",
    actions: {
      "api-key.create": { name: "API key created", describe: ({ role }) => ["Created the API key", `as ${formatDetail(role)}`] },
      "api-key.revoke": createAction("API key removed", "Removed the API key"),
    },
  },
  {
    name: "Devices",
    actions: {
      "device.rename": {
        name: "Device renamed",
        describe: ({ before, after }) => ["Renamed", `from ${quoteName(before)} to ${quoteName(after)}`],
      },
      "device.label": { name: "Label added", describe: ({ label }) => [`Added the label ${quoteName(label)} to`, ""] },
      "device.unlabel": { name: "Label removed", describe: ({ label }) => [`Removed the label ${quoteName(label)} from`, ""] },
      "device.forget": createAction("Device forgotten", "Forgot the device"),
    },
  },
  {
    name: "Labels",
    actions: {
      "label.create": createAction("Label created", "Created the label"),
      "label.remove": {
        name: "Label removed",
        describe: ({ devices }) => ["Removed the label", `from ${formatDeviceCount(devices)}`],
      },
    },
  },
  {
    name: "Alarms",
    actions: {
      "alarm.acknowledge": createAction("Alarm acknowledged", "Acknowledged"),
      "alarm.unacknowledge": createAction("Acknowledgment taken back", "Took back the acknowledgment of"),
      "alarm.note": createAction("Note on an alarm", "Wrote a note on"),
      "alarm.silence": createAction("Alarm silenced", "Silenced"),
      "alarm.unsilence": createAction("Silence of an alarm ended", "Ended the silence of"),
      "alarm-rule.create": { name: "Alarm rule created", describe: ({ name }) => [`Created the alarm rule ${quoteName(name)}:`, ""] },
      "alarm-rule.change": createAction("Alarm rule changed", "Changed the alarm rule"),
      "alarm-rule.delete": createAction("Alarm rule deleted", "Deleted the alarm rule"),
      "alarm-rule.reset": createAction("Alarm rule reset", "Gave its defaults back to the alarm rule"),
      "alarm-routes.change": createAction("Alarm routes changed", "Changed the routes of alarms:"),
    },
  },
  {
    name: "Channels",
    actions: {
      "channel.create": { name: "Channel created", describe: ({ name }) => [`Created the channel ${quoteName(name)}:`, ""] },
      "channel.change": { name: "Channel changed", describe: ({ name }) => [`Changed the channel ${quoteName(name)}:`, ""] },
      "channel.delete": { name: "Channel deleted", describe: ({ name }) => [`Deleted the channel ${quoteName(name)}:`, ""] },
      "channel.secret": { name: "Channel secret replaced", describe: ({ name }) => [`Replaced the secret of the channel ${quoteName(name)}:`, ""] },
      "channel.test": { name: "Channel tested", describe: ({ name }) => [`Sent a test to the channel ${quoteName(name)}:`, ""] },
      "channel.retry": {
        name: "Messages tried again",
        describe: ({ name, messages }) => [`Tried ${messages === 1 ? "1 message" : `${formatDetail(messages)} messages`} of the channel ${quoteName(name)} again:`, ""],
      },
    },
  },
  {
    name: "Sites",
    actions: {
      "site.create": { name: "Site created", describe: ({ name }) => [`Created the site ${quoteName(name)}:`, ""] },
      "site.change": { name: "Site changed", describe: ({ name }) => [`Changed the site ${quoteName(name)}:`, ""] },
      "site.delete": { name: "Site deleted", describe: ({ name }) => [`Deleted the site ${quoteName(name)}:`, ""] },
      "place.set": {
        name: "Place set",
        describe: ({ floor, x, y }) => ["Set the place of", `to floor ${formatDetail(floor)}, ${formatPoint(x, y)}`],
      },
      "place.remove": createAction("Place removed", "Removed the place of"),
      "plan.upload": { name: "Plan uploaded", describe: ({ floor }) => [`Uploaded the plan of floor ${formatDetail(floor)} of`, ""] },
      "plan.delete": { name: "Plan deleted", describe: ({ floor }) => [`Deleted the plan of floor ${formatDetail(floor)} of`, ""] },
      "zone.create": { name: "Zone created", describe: ({ name }) => [`Created the zone ${quoteName(name)} on`, ""] },
      "zone.change": { name: "Zone changed", describe: ({ name }) => [`Changed the zone ${quoteName(name)} on`, ""] },
      "zone.delete": { name: "Zone deleted", describe: ({ name }) => [`Deleted the zone ${quoteName(name)} of`, ""] },
      "survey.add": {
        name: "Survey point added",
        describe: ({ floor, x, y }) => ["Added a survey point to", `on floor ${formatDetail(floor)}, ${formatPoint(x, y)}`],
      },
      "survey.import": {
        name: "Survey points imported",
        describe: ({ added }) => [`Imported ${formatDetail(added)} survey points to`, ""],
      },
      "survey.remove": {
        name: "Survey point withdrawn",
        describe: ({ floor, x, y }) => ["Withdrew a survey point of", `on floor ${formatDetail(floor)}, ${formatPoint(x, y)}`],
      },
    },
  },
  {
    name: "Gateways",
    actions: {
      "gateway.claim": {
        name: "Gateway claimed",
        describe: ({ after }) => ["Claimed the gateway", after === undefined ? "" : `and named it ${quoteName(after)}`],
      },
      "gateway.batch": {
        name: "Many gateways claimed",
        describe: ({ gateways }) => [`Claimed ${formatDetail(gateways)} gateways at once:`, ""],
      },
      "gateway.register": createAction("Gateway claimed automatically", "Claimed the gateway", "when it first connected"),
      "gateway.rotate": createAction("New password for a gateway", "Created a new password for the gateway"),
      "gateway.release": createAction("Gateway released", "Released the gateway"),
    },
  },
  {
    name: "Requests",
    actions: {
      "request.write": { name: "Write, raw", describe: ({ identifier }) => [`Wrote ${formatDetail(identifier)} on`, "as a raw value"] },
      "request.write-decoded": { name: "Write", describe: ({ identifier }) => [`Wrote ${formatDetail(identifier)} on`, ""] },
      "request.ack": {
        name: "Acknowledgement, raw",
        describe: ({ identifier }) => [`Acknowledged raw samples ${formatDetail(identifier)} of`, ""],
      },
      "request.ack-decoded": {
        name: "Acknowledgement",
        describe: ({ identifier }) => [`Acknowledged samples ${formatDetail(identifier)} of`, ""],
      },
    },
  },
  {
    name: "Update jobs",
    actions: {
      "job.create": {
        name: "Job created",
        describe: ({ name, devices }) => ["Created", `${quoteName(name)} for ${formatDeviceCount(devices)}`],
      },
      "job.apply": createAction("Job started", "Started", "or installed its staged firmware"),
      "job.pause": { name: "Job paused", describe: ({ cause }) => ["Paused", describeCause(cause)] },
      "job.resume": createAction("Job resumed", "Resumed"),
      "job.cancel": {
        name: "Job canceled",
        describe: ({ cause }) => ["Canceled", describeCause(cause)],
      },
      "job.delete": { name: "Job deleted", describe: ({ name }) => ["Deleted", quoteName(name)] },
    },
  },
  {
    name: "Firmware",
    actions: {
      "firmware.upload": createAction("Firmware uploaded", "Uploaded firmware"),
      "firmware.release": createAction("Firmware released", "Released firmware"),
      "firmware.withdraw": createAction("Firmware withdrawn", "Withdrew firmware"),
      "firmware.delete": createAction("Firmware deleted", "Deleted firmware"),
    },
  },
  {
    name: "Service",
    actions: {
      "service.reload": createAction("Settings reloaded", "Reloaded the", "of the service"),
    },
  },
  {
    name: "Broker",
    actions: {
      "mqtt.forbidden-publish": createAction("Forbidden message", "Was not allowed to publish to"),
      "mqtt.forbidden-subscribe": createAction("Forbidden subscription", "Was not allowed to subscribe to"),
      "mqtt.forbidden-will": createAction("Forbidden last will", "Was not allowed to set a last will for"),
    },
  },
];
