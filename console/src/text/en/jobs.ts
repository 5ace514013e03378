/** Texts of the list of update jobs, and those that all job pages share. */
import { deviceCountText } from "../device-count";
import { formatCount } from "../format";

export const jobs = {
  title: "Update jobs",
  lead: "Newest first.",
  newJob: "New update job",
  table: "Update jobs",
  columns: { job: "Job", state: "State", progress: "Progress", firmware: "Firmware", by: "Created by", made: "Created" },
  devices: deviceCountText,
  failed: (number: string) => `${number} failed`,
  added: (number: number) => `${formatCount(number)} new, refresh`,
  groups: { label: "Jobs by state", all: "All", running: "Running", paused: "Paused", waiting: "Not started", over: "Finished" },
  empty: {
    title: "No update jobs yet",
    lead: "A job brings one firmware to many devices: a few first, then the others, and it stops automatically when too many fail. First there must be released firmware.",
    firmware: "Go to the firmware",
    filtered: "No job is in this state",
    all: "Show all jobs",
  },
  states: {
    job: {
      CREATED: "Not started",
      PENDING_APPROVAL: "Waiting for approval",
      SCHEDULED: "Scheduled",
      IN_PROGRESS: "Running",
      PAUSED: "Paused",
      CANCELING: "Canceling",
      CANCELED: "Canceled",
      COMPLETED: "Completed",
      DELETING: "Being deleted",
    },
    outcome: {
      SUCCEEDED: "Done",
      PARTIAL: "Partly done",
      FAILED: "Failed",
      NONE: "Nothing to do",
    },
    execution: {
      QUEUED: "Queued",
      DISPATCHED: "Starting",
      TRANSFERRING: "Transferring",
      VERIFYING: "Checking",
      STAGED: "Staged",
      APPLYING: "Activating",
      CONFIRMING: "Confirming",
      SUCCEEDED: "Done",
      FAILED: "Failed",
      TIMED_OUT: "Timed out",
      REJECTED: "Rejected",
      SKIPPED: "Skipped",
      CANCELED: "Canceled",
      REMOVED: "Removed",
      SUPERSEDED: "Taken over",
    },
    wave: {
      WAITING: "Waiting",
      RUNNING: "Running",
      SOAKING: "Soaking",
      PASSED: "Passed",
      HELD: "Held",
      FAILED: "Not passed",
      SKIPPED: "Not run",
    },
    /** Text alternative of a bar. */
    bar: {
      part: (count: string, word: string) => `${count} ${word.toLowerCase()}`,
      whole: (over: string, total: string, parts: string) => `${over} of ${total} devices finished: ${parts}`,
      leftOut: (count: string) => `${count} left out`,
      none: "no devices",
    },
  },
} as const;
