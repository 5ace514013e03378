/** Device search by a part of the name or by a MAC in any notation. Gateways are devices too. */
import { parseMac } from "../text/mac";
import { type Schemas, api, requireBody } from "./client";

/** Find the first devices that match; with an empty text, the first of all devices. */
export async function findDevicesByName(text: string, most: number, signal: AbortSignal): Promise<Schemas["DevicePage"]> {
  const mac = parseMac(text);
  const name = text.trim();
  const query = mac === null ? { MaxResults: most, ...(name && { FriendlyName: name }) } : { Ids: [`bmac-${mac}`] };
  return requireBody(await api.GET("/api/v1/devices", { params: { query }, signal }));
}
