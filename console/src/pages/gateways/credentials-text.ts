/** Credentials of a gateway as text for the installer and for a shell. */
import type { Schemas } from "../../api/client";
import { en } from "../../text/en";
import { formatMac } from "../../text/format";

type Claim = Schemas["GatewayClaim"];

const words = en.gateways;

/** Return the settings of the gateway as lines, to be sent or printed. */
export function formatInstallerText(claim: Claim, name: string | null): string {
  const { credentials, installerText: handover } = words;
  const title = name === null ? formatMac(claim.mac) : `${name} (${formatMac(claim.mac)})`;
  return [
    `${handover.gateway}: ${title}`,
    `${handover.host}: ${claim.broker.host}`,
    `${credentials.port}: ${claim.broker.port}`,
    `${credentials.tls}: ${claim.broker.tls ? credentials.yes : credentials.no}`,
    `${handover.clientId}: ${claim.mac}`,
    `${credentials.username}: ${claim.username}`,
    `${credentials.password}: ${claim.password}`,
  ].join("\n");
}

/** Return the shell command that starts an emulated gateway. The password is not an argument: all users of a machine
 * can see arguments. */
export function formatEmulatorCommand(claim: Claim): string {
  const { host, port, tls } = claim.broker;
  const scheme = tls ? "mqtts" : "mqtt";
  const user = `${encodeURIComponent(claim.username)}:${encodeURIComponent(claim.password)}`;
  const hostPart = host.includes(":") ? `[${host}]` : host;
  return `MESHFLEET_BROKER='${scheme}://${user}@${hostPart}:${port}' meshfleet gateway --mac ${claim.mac}`;
}
