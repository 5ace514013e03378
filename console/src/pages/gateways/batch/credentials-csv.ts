/** Credentials of gateways as CSV, in the form of `meshfleet gateways add --csv`. */
import type { Schemas } from "../../../api/client";
import { csvFile, csvLine } from "../../../text/csv";

export const CREDENTIAL_COLUMNS = ["mac", "username", "password", "host", "port", "tls"];

export function buildCredentialsFile(claims: readonly Schemas["GatewayClaim"][]): Blob {
  const lines = claims.map(({ mac, username, password, broker }) =>
    csvLine([mac, username, password, broker.host, broker.port, broker.tls ? "yes" : "no"]),
  );
  return csvFile([csvLine(CREDENTIAL_COLUMNS), ...lines]);
}
