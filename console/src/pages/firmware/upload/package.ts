/**
 * What a Nordic package says of itself, read in the browser: its manifest is one small file of a zip.
 *
 * Nothing is checked here, the service does that: what cannot be read says nothing. The rules are those of
 * `meshfleet.protocol.firmware_image`.
 */

export interface Said {
  readonly modelNumber: string | null;
  readonly version: string | null;
}

const NOTHING: Said = { modelNumber: null, version: null };
const MANIFEST = "manifest.json";
/** Bytes of a manifest at most, of the zip's directory, and of the end of a zip with the longest comment. */
const LARGEST = 64 * 1024;
const END = 22 + 0xffff;

const END_MARK = 0x06054b50;
const ENTRY_MARK = 0x02014b50;
const FILE_MARK = 0x04034b50;
const STORED = 0;
const DEFLATED = 8;

const ANY_MODEL = 0xffff;
/** The least number that says a version, 1.0.0, and the one that says none. */
const FIRST_VERSION = 0x01000000;
const NO_VERSION = 0xffffffff;
const PARTS = ["application", "softdevice_bootloader", "softdevice", "bootloader"] as const;

interface Entry {
  readonly method: number;
  readonly packed: number;
  readonly size: number;
  readonly offset: number;
}

export async function isZip(file: File): Promise<boolean> {
  const [p, k] = new Uint8Array(await file.slice(0, 2).arrayBuffer());
  return p === 0x50 && k === 0x4b;
}

export async function readPackage(file: File): Promise<Said> {
  try {
    const entry = await findManifest(file);
    return entry === null ? NOTHING : saidIn(JSON.parse(await readText(file, entry)));
  } catch {
    return NOTHING;
  }
}

async function view(file: File, start: number, length: number): Promise<DataView> {
  return new DataView(await file.slice(start, start + length).arrayBuffer());
}

async function findManifest(file: File): Promise<Entry | null> {
  const end = await view(file, Math.max(0, file.size - END), END);
  let at = end.byteLength - 22;
  while (at >= 0 && end.getUint32(at, true) !== END_MARK) at -= 1;
  if (at < 0) return null;
  const directory = await view(file, end.getUint32(at + 16, true), Math.min(end.getUint32(at + 12, true), LARGEST));
  for (let place = 0; place + 46 <= directory.byteLength && directory.getUint32(place, true) === ENTRY_MARK; ) {
    const length = directory.getUint16(place + 28, true);
    if (textIn(directory, place + 46, length) === MANIFEST) {
      return {
        method: directory.getUint16(place + 10, true),
        packed: directory.getUint32(place + 20, true),
        size: directory.getUint32(place + 24, true),
        offset: directory.getUint32(place + 42, true),
      };
    }
    place += 46 + length + directory.getUint16(place + 30, true) + directory.getUint16(place + 32, true);
  }
  return null;
}

async function readText(file: File, { method, packed, size, offset }: Entry): Promise<string> {
  const head = await view(file, offset, 30);
  if (head.getUint32(0, true) !== FILE_MARK || packed > LARGEST || size > LARGEST) throw new RangeError(MANIFEST);
  const start = offset + 30 + head.getUint16(26, true) + head.getUint16(28, true);
  const content = file.slice(start, start + packed);
  if (method === STORED) return content.text();
  if (method !== DEFLATED) throw new RangeError(MANIFEST);
  return inflate(content);
}

/** Unpack no more than a manifest may have, whatever the zip says. */
async function inflate(content: Blob): Promise<string> {
  const reader = content.stream().pipeThrough(new DecompressionStream("deflate-raw")).getReader();
  const pieces: BlobPart[] = [];
  let size = 0;
  for (let next = await reader.read(); !next.done; next = await reader.read()) {
    size += next.value.byteLength;
    if (size > LARGEST) {
      await reader.cancel();
      throw new RangeError(MANIFEST);
    }
    pieces.push(next.value);
  }
  return new Blob(pieces).text();
}

function textIn(data: DataView, start: number, length: number): string {
  return new TextDecoder().decode(new Uint8Array(data.buffer, start, Math.min(length, data.byteLength - start)));
}

function saidIn(manifest: unknown): Said {
  const parts = PARTS.map((part) => at(at(manifest, "manifest"), part)).filter((part) => part !== undefined);
  const told = parts.map((part) => at(part, "init_packet_data"));
  const models = told.map((each) => at(each, "device_type"));
  const model = models.find((each) => typeof each === "number" && each !== ANY_MODEL);
  return { modelNumber: modelOf(model), version: versionOf(at(told[0], "application_version")) };
}

function at(value: unknown, name: string): unknown {
  if (typeof value !== "object" || value === null) return undefined;
  return Object.entries(value).find(([key]) => key === name)?.[1];
}

function modelOf(number: unknown): string | null {
  if (typeof number !== "number" || !Number.isInteger(number) || number < 0 || number > ANY_MODEL) return null;
  return number.toString(16).toUpperCase().padStart(4, "0");
}

function versionOf(number: unknown): string | null {
  if (typeof number !== "number" || !Number.isInteger(number)) return null;
  if (number < FIRST_VERSION || number >= NO_VERSION) return null;
  const [major, minor, patch, beta] = [24, 16, 8, 0].map((bits) => (number >>> bits) & 0xff);
  return `${major}.${minor}.${patch}${beta ? `-beta.${beta}` : ""}`;
}
