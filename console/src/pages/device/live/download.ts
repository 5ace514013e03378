/** Download of samples as a CSV file. */
import { api, requireBody } from "../../../api/client";
import { downloadFile } from "../../../file-download";

export interface CsvSelection {
  readonly deviceId: string;
  readonly identifier: string;
  readonly from: number;
  readonly to: number;
}

/** Load the samples of a measurement and offer them as a file. */
export async function saveCsv({ deviceId, identifier, from, to }: CsvSelection): Promise<void> {
  const query = {
    Kind: ["measurement" as const],
    Identifier: identifier,
    From: new Date(from).toISOString(),
    To: new Date(to).toISOString(),
  };
  const response = await api.GET("/api/v1/devices/{device_id}/samples", {
    params: { path: { device_id: deviceId }, query },
    headers: { Accept: "text/csv" },
    parseAs: "blob",
  });
  downloadFile(requireBody(response), `${deviceId}-${identifier}.csv`);
}
