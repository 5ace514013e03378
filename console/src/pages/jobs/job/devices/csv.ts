/** The devices of a job as a file. They are read page by page and written down at once; a list of any length is never
 * laid out. */
import { type Schemas, api, requireBody } from "../../../../api/client";
import { fetchDeviceNames } from "../../../../api/device-names.svelte";
import { downloadFile } from "../../../../file-download";
import { type Cells, csvFile, csvLine } from "../../../../text/csv";
import { en } from "../../../../text/en";
import type { Execution } from "../executions.svelte";

const COLUMNS = [
  "deviceId",
  "state",
  "attempt",
  "waitingFor",
  "reasonCode",
  "reason",
  "method",
  "wave",
  "gateway",
  "startedAt",
  "updatedAt",
  "fromVersion",
  "toVersion",
] as const satisfies readonly (keyof Execution)[];

const NAME = "friendlyName";
const PAGE = 1000;

/** Read all, and hand the file to the browser; says how many there are meanwhile. */
export async function saveCsv(id: string, read: (many: number) => void, signal: AbortSignal): Promise<void> {
  const lines = [csvLine([NAME, ...COLUMNS])];
  let token: string | null = null;
  let many = 0;
  do {
    const query = { MaxResults: PAGE, ...(token !== null && { NextToken: token }) };
    const params = { path: { job_id: id }, query };
    const page: Schemas["ExecutionPage"] = requireBody(await api.GET("/api/v1/jobs/{job_id}/executions", { params, signal }));
    const called = await fetchDeviceNames(page.items.map(({ deviceId }) => deviceId), signal);
    const cells = (item: Execution): Cells => [called.get(item.deviceId) ?? "", ...COLUMNS.map((column) => item[column])];
    lines.push(page.items.map((item) => csvLine(cells(item))).join(""));
    many += page.items.length;
    read(many);
    token = page.nextToken;
  } while (token !== null);
  downloadFile(csvFile(lines), en.job.devices.file(id));
}
