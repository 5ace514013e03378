/** CSV output for spreadsheets. */

/** Beginnings that a spreadsheet would evaluate as a formula; names may contain anything. */
const FORMULA = /^[=+\-@\t\r]/;

export type Cells = readonly (string | number | null)[];

export function csvLine(cells: Cells): string {
  return `${cells.map(cell).join(",")}\r\n`;
}

export function csvFile(lines: readonly string[]): Blob {
  return new Blob([...lines], { type: "text/csv" });
}

function cell(value: string | number | null): string {
  const text = String(value ?? "");
  const plain = FORMULA.test(text) ? `'${text}` : text;
  return /[",\r\n]/.test(plain) ? `"${plain.replaceAll('"', '""')}"` : plain;
}
