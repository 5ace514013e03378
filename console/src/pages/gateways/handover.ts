/** Credentials as texts for those who need them: the installer, and a shell. */
import type { Schemas } from "../../api/client";
import { en } from "../../text/en";
import { formatMac } from "../../text/format";

type Claim = Schemas["GatewayClaim"];

const words = en.gateways;

/** All that is to be set at the gateway, to be sent or printed. */
export function installerText(claim: Claim, name: string | null): string {
  const { credentials, installerText: handover } = words;
  const called = name === null ? formatMac(claim.mac) : `${name} (${formatMac(claim.mac)})`;
  return [
    `${handover.gateway}: ${called}`,
    `${handover.host}: ${claim.broker.host}`,
    `${credentials.port}: ${claim.broker.port}`,
    `${credentials.tls}: ${claim.broker.tls ? credentials.yes : credentials.no}`,
    `${handover.clientId}: ${claim.mac}`,
    `${credentials.username}: ${claim.username}`,
    `${credentials.password}: ${claim.password}`,
  ].join("\n");
}

/** What starts an emulated gateway. The password is no argument: everybody on a machine can see those. */
export function emulatedCommand(claim: Claim): string {
  const { host, port, tls } = claim.broker;
  const scheme = tls ? "mqtts" : "mqtt";
  const user = `${encodeURIComponent(claim.username)}:${encodeURIComponent(claim.password)}`;
  const place = host.includes(":") ? `[${host}]` : host;
  return `MESHFLEET_BROKER='${scheme}://${user}@${place}:${port}' meshfleet gateway --mac ${claim.mac}`;
}
