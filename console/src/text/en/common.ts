/** Texts that several pages share. */
import { isolateBidi } from "../bidi";

export const common = {
  breadcrumb: "Breadcrumb",
  loading: "Loading…",
  retry: "Try again",
  close: "Close",
  cancel: "Cancel",
  remove: "Remove",
  copy: "Copy",
  copied: "Copied",
  copyFailed: "Copy failed: the browser does not allow it",
  more: "Show more",
  newRows: (many: string) => `${many} new · Show`,
  andMore: (number: string) => `and ${number} more`,
  dropZone: {
    drop: "Drop the file here, or",
    choose: "choose a file",
    another: "choose another file",
    several: "One file at a time, please.",
    unreadable: (name: string) =>
      `The browser cannot read ${isolateBidi(name)}. Was it moved or changed, or is it a folder? Choose it once more.`,
  },
  gatewayFilter: { label: "Gateway", hint: "MAC", wrong: "This is not a MAC.", clear: "All gateways" },
  nothing: "Nothing yet",
  unknown: "unknown",
  product: (name: string, model: string) => `${name} · ${model}`,
  never: "never",
  now: "now",
  status: { connected: "Online", disconnected: "Offline", dfu: "DFU mode", updating: "Updating" },
  signal: { none: "no signal known", good: "good", fair: "fair", weak: "weak", "very-weak": "very weak", unit: "dBm" },
  battery: { low: "Low" },
  actors: { "api-key": "API key", gateway: "gateway", service: "the service itself", commandLine: "the command line" },
  unreachable: "The service did not answer.",
  sessionEnded: "The session had ended, so this was not done. Please try again.",
  unexpectedStatus: (status: number) => `The service returned status ${status}.`,
  unexpected: "Something went wrong in the console. Reload the page to continue.",
} as const;
