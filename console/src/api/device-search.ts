/** Devices by what people call them: a part of the name, or a MAC in any spelling. Gateways are devices too. */
import { parseMac } from "../text/mac";
import { type Schemas, api, requireBody } from "./client";

/** The first devices of a name; all devices, if nothing is said of it. */
export async function findDevicesByName(text: string, most: number, signal: AbortSignal): Promise<Schemas["DevicePage"]> {
  const mac = parseMac(text);
  const name = text.trim();
  const query = mac === null ? { MaxResults: most, ...(name && { FriendlyName: name }) } : { Ids: [`bmac-${mac}`] };
  return requireBody(await api.GET("/api/v1/devices", { params: { query }, signal }));
}
