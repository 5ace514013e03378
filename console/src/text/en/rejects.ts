/** Texts of the page of rejected reports. */
export const rejects = {
  title: "Rejected reports",
  table: "Rejected reports",
  lead: "Reports that the service could not accept, newest first",
  columns: { time: "Time", gateway: "Gateway", reason: "Why", topic: "Topic", payload: "Payload" },
  unknownGateway: "unknown",
  open: "Show payload",
  close: "Hide payload",
  nothing: "The payload is empty.",
  bytes: "Bytes that are not text are shown as �; control characters are shown as symbols.",
  cut: "Only the beginning is stored.",
  empty: {
    title: "No rejected reports",
    lead: "Reports that the service could not read appear here: a broken payload, an unknown kind of report, a value out of range. If a gateway is online and nothing arrives, look here first.",
    filtered: "No rejected reports of this gateway",
  },
  reasons: {
    payload: "The payload cannot be read",
    topic: "The topic is unknown",
    kind: "The kind of report is unknown",
    identifier: "The identifier in the topic is wrong",
    gateway: "The gateway is not claimed, or its address is wrong",
    device: "The address of the device is wrong",
    report: "It could not be stored",
    field: (name: string) => `The field “${name}” is missing or wrong`,
    other: "It could not be accepted",
  },
} as const;
