/** Texts of the audit log: a name and a sentence for each action. */
import { deviceCountText } from "../device-count";
import { isolateBidi } from "../bidi";

/** Details that the service records with an action. */
type Detail = Readonly<Record<string, unknown>>;

/** Parts of a sentence before and after the name of the target. */
type Told = readonly [before: string, behind: string];

export interface Action {
  /** Name in the filter of actions. */
  readonly name: string;
  /** Return the two parts of the sentence. */
  readonly describe: (detail: Detail) => Told;
}

const plain = (name: string, before: string, behind = ""): Action => ({ name, describe: () => [before, behind] });

/** Quote a name. An unset name becomes "no name". */
const quoted = (value: unknown): string => (typeof value === "string" && value !== "" ? `“${isolateBidi(value)}”` : "no name");
const text = (value: unknown): string => (value === undefined || value === null ? "" : isolateBidi(String(value)));
const some = (value: unknown): string => (typeof value === "number" ? deviceCountText(value) : "devices");

/** Reasons for actions of the service itself; actions of users have none. */
const CAUSES: Readonly<Record<string, string>> = {
  ABORT_CRITERIA: "because too many updates failed",
  GATE: "after a wave, for a check",
  GATE_FAILED: "because too few devices of a wave succeeded",
  DEADLINE: "because its deadline had passed",
  RELEASE_WITHDRAWN: "because its firmware was withdrawn",
};
const because = (cause: unknown): string => CAUSES[String(cause)] ?? "";

/** All audited actions, by area. */
export const groups: readonly { readonly name: string; readonly actions: Readonly<Record<string, Action>> }[] = [
  {
    name: "Signing in",
    actions: {
      "auth.login": plain("Signed in", "Signed in"),
      "auth.logout": plain("Signed out", "Signed out"),
    },
  },
  {
    name: "People",
    actions: {
      "user.create": { name: "Person added", describe: ({ role }) => ["Added", `as ${text(role)}`] },
      "user.change-role": {
        name: "Role changed",
        describe: ({ before, after }) => ["Changed the role of", `from ${text(before)} to ${text(after)}`],
      },
      "user.change-password": plain("Password changed", "Changed the password of"),
      "user.remove": plain("Person removed", "Removed", "from the people who may sign in"),
    },
  },
  {
    name: "API keys",
    actions: {
      "api-key.create": { name: "API key created", describe: ({ role }) => ["Created the API key", `as ${text(role)}`] },
      "api-key.revoke": plain("API key removed", "Removed the API key"),
    },
  },
  {
    name: "Devices",
    actions: {
      "device.rename": {
        name: "Device renamed",
        describe: ({ before, after }) => ["Renamed", `from ${quoted(before)} to ${quoted(after)}`],
      },
      "device.label": { name: "Label added", describe: ({ label }) => [`Added the label ${quoted(label)} to`, ""] },
      "device.unlabel": { name: "Label removed", describe: ({ label }) => [`Removed the label ${quoted(label)} from`, ""] },
      "device.forget": plain("Device forgotten", "Forgot the device"),
    },
  },
  {
    name: "Labels",
    actions: {
      "label.create": plain("Label created", "Created the label"),
      "label.remove": {
        name: "Label removed",
        describe: ({ devices }) => ["Removed the label", `from ${some(devices)}`],
      },
    },
  },
  {
    name: "Gateways",
    actions: {
      "gateway.claim": {
        name: "Gateway claimed",
        describe: ({ after }) => ["Claimed the gateway", after === undefined ? "" : `and named it ${quoted(after)}`],
      },
      "gateway.register": plain("Gateway claimed automatically", "Claimed the gateway", "when it first connected"),
      "gateway.rotate": plain("New password for a gateway", "Created a new password for the gateway"),
      "gateway.release": plain("Gateway released", "Released the gateway"),
    },
  },
  {
    name: "Requests",
    actions: {
      "request.write": { name: "Write, raw", describe: ({ identifier }) => [`Wrote ${text(identifier)} of`, "as a raw value"] },
      "request.write-decoded": { name: "Write", describe: ({ identifier }) => [`Wrote ${text(identifier)} of`, ""] },
      "request.ack": {
        name: "Acknowledgement, raw",
        describe: ({ identifier }) => [`Acknowledged raw samples ${text(identifier)} of`, ""],
      },
      "request.ack-decoded": {
        name: "Acknowledgement",
        describe: ({ identifier }) => [`Acknowledged samples ${text(identifier)} of`, ""],
      },
    },
  },
  {
    name: "Update jobs",
    actions: {
      "job.create": {
        name: "Job created",
        describe: ({ name, devices }) => ["Created", `${quoted(name)} for ${some(devices)}`],
      },
      "job.apply": plain("Job started", "Started", "or installed its staged firmware"),
      "job.pause": { name: "Job paused", describe: ({ cause }) => ["Paused", because(cause)] },
      "job.resume": plain("Job resumed", "Resumed"),
      "job.cancel": {
        name: "Job canceled",
        describe: ({ cause }) => ["Canceled", because(cause)],
      },
      "job.delete": { name: "Job deleted", describe: ({ name }) => ["Deleted", quoted(name)] },
    },
  },
  {
    name: "Firmware",
    actions: {
      "firmware.upload": plain("Firmware uploaded", "Uploaded firmware"),
      "firmware.release": plain("Firmware released", "Released firmware"),
      "firmware.withdraw": plain("Firmware withdrawn", "Withdrew firmware"),
      "firmware.delete": plain("Firmware deleted", "Deleted firmware"),
    },
  },
  {
    name: "Broker",
    actions: {
      "mqtt.forbidden-publish": plain("Forbidden message", "Was not allowed to publish to"),
      "mqtt.forbidden-subscribe": plain("Forbidden subscription", "Was not allowed to subscribe to"),
      "mqtt.forbidden-will": plain("Forbidden last will", "Was not allowed to set a last will for"),
    },
  },
];
