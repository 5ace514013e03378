/** CSV with gateways to claim: columns `mac`, and optionally `name` and `labels`, in any order. The other columns of a
 * file with credentials are ignored, so that such a file can be read too. */
import type { Schemas } from "../../../api/client";
import { MAX_LABEL_LENGTH, MAX_NAME_LENGTH } from "../../../api/limits";
import { en } from "../../../text/en";
import { checkMac } from "../../../text/mac";
import { CREDENTIAL_COLUMNS } from "./credentials-csv";

type BatchGateway = Schemas["BatchGateway"];

/** Maximum number of gateways in one request. */
export const MAX_GATEWAYS = 1000;
const MAX_LABELS = 20;
const KNOWN_COLUMNS = new Set(["mac", "name", "labels", ...CREDENTIAL_COLUMNS]);
/** First line with which a file tells Excel the separator of its columns. */
const SEPARATOR_LINE = /^sep=([\t !#-~])$/i;
/** Number such as 2,0E+10, to which a spreadsheet program may change a MAC. */
const CHANGED_BY_EXCEL = /^[0-9.,]+e\+[0-9]+$/i;

const words = en.gateways.many.mistakes;

/** Row of the file, with the number of its line and its mistakes. */
export interface GatewayRow {
  readonly line: number;
  /** The MAC as it is in the file, if it is wrong. */
  readonly mac: string;
  readonly name: string;
  readonly labels: readonly string[];
  readonly mistakes: readonly string[];
}

interface CsvRow {
  readonly line: number;
  readonly cells: readonly string[];
}

/** Parse CSV. Columns are separated by commas, by semicolons as in files of Excel in many countries, or by the
 * character in a first line such as `sep=;`. */
export function parseGateways(text: string): readonly GatewayRow[] {
  const { rows, openQuote } = splitRows(text.replace(/^\ufeff/, ""));
  const [head, ...body] = rows;
  if (head === undefined) return [];
  const columns = head.cells.map((each) => each.trim().toLowerCase());
  const headMistakes = checkHead(columns);
  if (headMistakes.length > 0) return [buildWrongRow(head.line, headMistakes)];
  const firstLines = new Map<string, number>();
  const gateways = body.map((row) => parseRow(row, columns, firstLines));
  return openQuote === null ? gateways : [...gateways, buildWrongRow(openQuote, [words.openQuote])];
}

/** Return the gateways as the service expects them. */
export function buildBody(rows: readonly GatewayRow[]): BatchGateway[] {
  return rows.map(({ mac, name, labels }) => ({ mac, friendlyName: name || null, labels: [...labels] }));
}

function checkHead(columns: readonly string[]): string[] {
  if (!columns.includes("mac")) return [words.noMacColumn];
  return columns.flatMap((each, index) => {
    if (!KNOWN_COLUMNS.has(each)) return [words.unknownColumn(each)];
    return columns.indexOf(each) < index ? [words.columnTwice(each)] : [];
  });
}

function buildWrongRow(line: number, mistakes: readonly string[]): GatewayRow {
  return { line, mac: "", name: "", labels: [], mistakes };
}

function parseRow({ line, cells }: CsvRow, columns: readonly string[], firstLines: Map<string, number>): GatewayRow {
  const valueOf = (name: string): string => cells[columns.indexOf(name)]?.trim() ?? "";
  const mistakes: string[] = cells.length > columns.length ? [words.tooManyValues] : [];
  const written = valueOf("mac");
  const checked = checkMac(written);
  const mac = checked.state === "good" ? checked.mac : null;
  if (mac === null || mac === "ffffffffffff") mistakes.push(describeMac(written));
  else {
    const first = firstLines.get(mac) ?? line;
    firstLines.set(mac, first);
    if (first !== line) mistakes.push(words.twice(first));
  }
  const name = valueOf("name");
  if ([...name].length > MAX_NAME_LENGTH) mistakes.push(words.longName(MAX_NAME_LENGTH));
  const labels = [...new Set(valueOf("labels").split(";").map((each) => each.trim()))].filter((each) => each !== "");
  if (labels.length > MAX_LABELS) mistakes.push(words.manyLabels(MAX_LABELS));
  if (labels.some((each) => [...each].length > MAX_LABEL_LENGTH)) mistakes.push(words.longLabel(MAX_LABEL_LENGTH));
  return { line, mac: mac ?? written, name, labels, mistakes };
}

function describeMac(text: string): string {
  if (text === "") return words.noMac;
  return CHANGED_BY_EXCEL.test(text) ? words.number : words.wrongMac;
}

/** Split CSV into rows that are not blank (RFC 4180). `openQuote` is the line of a quote that does not end. */
function splitRows(text: string): { rows: readonly CsvRow[]; openQuote: number | null } {
  const signs = text.replaceAll("\r\n", "\n").replaceAll("\r", "\n");
  const [firstLine = ""] = signs.split("\n", 1);
  const declared = SEPARATOR_LINE.exec(firstLine)?.[1];
  const separator = declared ?? (firstLine.split(";").length > firstLine.split(",").length ? ";" : ",");
  const rows: CsvRow[] = [];
  let cells: string[] = [];
  let cell = "";
  let isQuoted = false;
  let line = 1;
  let rowLine = 1;
  const endRow = (): void => {
    cells.push(cell);
    if (cells.some((each) => each.trim() !== "")) rows.push({ line: rowLine, cells });
    cells = [];
    cell = "";
  };
  for (let index = 0; index < signs.length; index++) {
    const sign = signs.charAt(index);
    if (sign === "\n") line++;
    if (isQuoted && sign === '"' && signs.charAt(index + 1) === '"') {
      cell += '"';
      index++;
    } else if (sign === '"' && (isQuoted || cell === "")) isQuoted = !isQuoted;
    else if (isQuoted) cell += sign;
    else if (sign === separator) {
      cells.push(cell);
      cell = "";
    } else if (sign === "\n") {
      endRow();
      rowLine = line;
    } else cell += sign;
  }
  if (!isQuoted) endRow();
  return { rows: declared === undefined ? rows : rows.slice(1), openQuote: isQuoted ? rowLine : null };
}
