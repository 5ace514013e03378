/** Texts of the page of labels. */
import { isolateBidi } from "../bidi";

export const labels = {
  title: "Labels",
  table: "Labels",
  columns: { label: "Label", devices: "Devices", actions: "Actions" },
  summary: (many: string, one: boolean) => (one ? "1 label" : `${many} labels`),
  some: (many: string) => `The first ${many} labels`,
  found: (many: string, one: boolean) => (one ? "1 label found" : `${many} labels found`),
  searching: "Searching…",
  find: "Find a label",
  none: "No label contains this",
  clear: "Clear",
  empty: {
    title: "No labels yet",
    lead: "A label is a word that you put on devices, such as a floor, a customer or “pilot”. With it you find them again, and choose them for an update.",
  },
  create: {
    open: "New label",
    title: "New label",
    name: "Label",
    hint: "1 to 64 characters. Put it on devices on their pages, or in the list of devices.",
    long: (many: number) => `${many} characters are too many: 64 at most.`,
    path: "A label cannot be just dots like this.",
    submit: "Create",
    busy: "Creating…",
    done: (name: string) => `Label “${isolateBidi(name)}” was created.`,
    exists: (name: string) => `Label “${isolateBidi(name)}” exists already.`,
  },
  remove: {
    open: "Remove",
    title: "Remove this label everywhere?",
    devices: (many: string, one: boolean) => (one ? "It is removed from 1 device." : `It is removed from ${many} devices.`),
    unused: "No device has it.",
    lead: "The devices stay as they are. This cannot be undone.",
    submit: "Remove label",
    busy: "Removing…",
    done: (name: string) => `Label “${isolateBidi(name)}” was removed.`,
  },
} as const;
