/** Texts of the tab with the properties of a device. */
export const properties = {
  title: "Properties",
  table: "Properties of this device",
  search: "Search properties",
  columns: { property: "Property", value: "Value", age: "Age", ask: "Read or write" },
  choose: {
    both: (name: string) => `Read or write ${name}`,
    read: (name: string) => `Read ${name}`,
    write: (name: string) => `Write ${name}`,
  },
  shown: (shown: string, all: string) => `${shown} of ${all} properties`,
  none: "This device has not reported any property yet",
  noneHint: "Devices report their properties from time to time. A property can also be read on request.",
  noMatch: "No property matches",
  clear: "Clear the search",
  read: "read on request",
  raw: "raw",
  lastWrite: {
    open: (value: string) => `${value} is written, not reported yet`,
    met: "As written",
    unmet: (value: string) => `${value} was written; the device holds another value`,
    unknown: (value: string) => `${value} was written; it cannot be compared with what is shown`,
  },
} as const;
