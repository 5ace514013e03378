/** Samples as a file. A plain link could not carry the token, so the file is fetched and handed to the browser. */
import { api, bodyOf } from "../../../api/client";

export interface Wanted {
  readonly deviceId: string;
  readonly identifier: string;
  readonly from: number;
  readonly to: number;
}

/** How long the browser may take to begin with saving. */
const FOR = 60_000;

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
  const address = URL.createObjectURL(bodyOf(answer));
  const link = document.createElement("a");
  link.href = address;
  link.download = `${deviceId}-${identifier}.csv`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(address), FOR);
}
