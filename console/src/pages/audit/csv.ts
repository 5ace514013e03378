/** Export of audit rows as CSV. */
import { csvFile, csvLine } from "../../text/csv";
import type { Row } from "./sentence";

const HEAD = ["id", "time", "actor", "action", "target", "detail", "address"];

export function buildCsv(rows: readonly Row[]): Blob {
  const lines = rows.map(({ id, time, actor, action, target, detail, address }) =>
    csvLine([id, time, actor, action, target, JSON.stringify(detail), address]),
  );
  return csvFile([csvLine(HEAD), ...lines]);
}
