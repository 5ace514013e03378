/** Samples as a file. */
import { api, requireBody } from "../../../api/client";
import { downloadFile } from "../../../file-download";

export interface Wanted {
  readonly deviceId: string;
  readonly identifier: string;
  readonly from: number;
  readonly to: number;
}

export async function saveCsv({ deviceId, identifier, from, to }: Wanted): Promise<void> {
  const query = {
    Kind: ["measurement" as const],
    Identifier: identifier,
    From: new Date(from).toISOString(),
    To: new Date(to).toISOString(),
  };
  const answer = await api.GET("/api/v1/devices/{device_id}/samples", {
    params: { path: { device_id: deviceId }, query },
    headers: { Accept: "text/csv" },
    parseAs: "blob",
  });
  downloadFile(requireBody(answer), `${deviceId}-${identifier}.csv`);
}
