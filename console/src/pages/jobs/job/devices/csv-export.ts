/** CSV export of the devices of a job. Pages are converted to text as they are loaded, so a list of any length is never
 * rendered. */
import { type Schemas, api, requireBody } from "../../../../api/client";
import { fetchDeviceNames } from "../../../../api/device-names.svelte";
import { downloadFile } from "../../../../file-download";
import { type Cells, csvFile, csvLine } from "../../../../text/csv";
import { en } from "../../../../text/en";
import type { Execution } from "../execution-list.svelte";

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

const NAME_COLUMN = "friendlyName";
const PAGE_SIZE = 1000;

/** Load all devices of a job and download them as a file. `onprogress` receives the number loaded so far. */
export async function exportCsv(id: string, onprogress: (loaded: number) => void, signal: AbortSignal): Promise<void> {
  const lines = [csvLine([NAME_COLUMN, ...COLUMNS])];
  let token: string | null = null;
  let loaded = 0;
  do {
    const query = { MaxResults: PAGE_SIZE, ...(token !== null && { NextToken: token }) };
    const params = { path: { job_id: id }, query };
    const page: Schemas["ExecutionPage"] = requireBody(await api.GET("/api/v1/jobs/{job_id}/executions", { params, signal }));
    const names = await fetchDeviceNames(page.items.map(({ deviceId }) => deviceId), signal);
    const cells = (item: Execution): Cells => [names.get(item.deviceId) ?? "", ...COLUMNS.map((column) => item[column])];
    lines.push(page.items.map((item) => csvLine(cells(item))).join(""));
    loaded += page.items.length;
    onprogress(loaded);
    token = page.nextToken;
  } while (token !== null);
  downloadFile(csvFile(lines), en.job.devices.file(id));
}
