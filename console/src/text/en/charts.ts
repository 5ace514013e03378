/** Texts of charts and of the tables that replace them. */
export const charts = {
  time: "Time",
  min: "Lowest",
  mean: "Mean",
  max: "Highest",
  last: "Last",
  count: "Samples",
  newest: (shown: string, all: string) => `the newest ${shown} of ${all}`,
  empty: "No reports in this time.",
  loadFailed: "The chart could not be loaded. The table has the same numbers.",
  noValue: "–",
  noCursor: "no time chosen; the arrow keys choose one",
  cursorLabel: (name: string) => `Time in the chart of ${name}`,
} as const;
