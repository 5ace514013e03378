/**
 * Model and version of a Nordic package, read in the browser from its manifest, a small file in the zip.
 *
 * Nothing is validated here, the service does that: an unreadable package gives no information. The rules are those of
 * `meshfleet.protocol.firmware_image`.
 */

export interface PackageInfo {
  readonly modelNumber: string | null;
  readonly version: string | null;
}

const NO_INFO: PackageInfo = { modelNumber: null, version: null };
const MANIFEST = "manifest.json";
/** Maximum size in bytes of a manifest and of the zip directory, and of the end record with the longest comment. */
const MAX_SIZE = 64 * 1024;
const MAX_END_SIZE = 22 + 0xffff;

const END_SIGNATURE = 0x06054b50;
const ENTRY_SIGNATURE = 0x02014b50;
const FILE_SIGNATURE = 0x04034b50;
const STORED = 0;
const DEFLATED = 8;

const ANY_MODEL = 0xffff;
/** Smallest number that encodes a version, 1.0.0, and the number that means no version. */
const FIRST_VERSION = 0x01000000;
const NO_VERSION = 0xffffffff;
const PARTS = ["application", "softdevice_bootloader", "softdevice", "bootloader"] as const;

interface Entry {
  readonly method: number;
  readonly compressedSize: number;
  readonly size: number;
  readonly offset: number;
}

export async function isZip(file: File): Promise<boolean> {
  const [p, k] = new Uint8Array(await file.slice(0, 2).arrayBuffer());
  return p === 0x50 && k === 0x4b;
}

/** Return model and version of a package; null values if it cannot be read. */
export async function readPackage(file: File): Promise<PackageInfo> {
  try {
    const entry = await findManifest(file);
    return entry === null ? NO_INFO : parseManifest(JSON.parse(await readText(file, entry)));
  } catch {
    return NO_INFO;
  }
}

async function readView(file: File, start: number, length: number): Promise<DataView> {
  return new DataView(await file.slice(start, start + length).arrayBuffer());
}

async function findManifest(file: File): Promise<Entry | null> {
  const end = await readView(file, Math.max(0, file.size - MAX_END_SIZE), MAX_END_SIZE);
  let offset = end.byteLength - 22;
  while (offset >= 0 && end.getUint32(offset, true) !== END_SIGNATURE) offset -= 1;
  if (offset < 0) return null;
  const size = Math.min(end.getUint32(offset + 12, true), MAX_SIZE);
  const directory = await readView(file, end.getUint32(offset + 16, true), size);
  for (let position = 0; position + 46 <= directory.byteLength && directory.getUint32(position, true) === ENTRY_SIGNATURE; ) {
    const length = directory.getUint16(position + 28, true);
    if (decodeText(directory, position + 46, length) === MANIFEST) {
      return {
        method: directory.getUint16(position + 10, true),
        compressedSize: directory.getUint32(position + 20, true),
        size: directory.getUint32(position + 24, true),
        offset: directory.getUint32(position + 42, true),
      };
    }
    position += 46 + length + directory.getUint16(position + 30, true) + directory.getUint16(position + 32, true);
  }
  return null;
}

async function readText(file: File, { method, compressedSize, size, offset }: Entry): Promise<string> {
  const head = await readView(file, offset, 30);
  if (head.getUint32(0, true) !== FILE_SIGNATURE || compressedSize > MAX_SIZE || size > MAX_SIZE) throw new RangeError(MANIFEST);
  const start = offset + 30 + head.getUint16(26, true) + head.getUint16(28, true);
  const content = file.slice(start, start + compressedSize);
  if (method === STORED) return content.text();
  if (method !== DEFLATED) throw new RangeError(MANIFEST);
  return inflate(content);
}

/** Decompress at most the maximum size of a manifest, whatever size the zip declares. */
async function inflate(content: Blob): Promise<string> {
  const reader = content.stream().pipeThrough(new DecompressionStream("deflate-raw")).getReader();
  const pieces: BlobPart[] = [];
  let size = 0;
  for (let next = await reader.read(); !next.done; next = await reader.read()) {
    size += next.value.byteLength;
    if (size > MAX_SIZE) {
      await reader.cancel();
      throw new RangeError(MANIFEST);
    }
    pieces.push(next.value);
  }
  return new Blob(pieces).text();
}

function decodeText(data: DataView, start: number, length: number): string {
  return new TextDecoder().decode(new Uint8Array(data.buffer, start, Math.min(length, data.byteLength - start)));
}

function parseManifest(manifest: unknown): PackageInfo {
  const parts = PARTS.map((part) => getField(getField(manifest, "manifest"), part)).filter((part) => part !== undefined);
  const packets = parts.map((part) => getField(part, "init_packet_data"));
  const models = packets.map((each) => getField(each, "device_type"));
  const model = models.find((each) => typeof each === "number" && each !== ANY_MODEL);
  return { modelNumber: formatModel(model), version: formatVersion(getField(packets[0], "application_version")) };
}

/** Return an own field of an object; undefined if the value is not an object or has no such field. */
function getField(value: unknown, name: string): unknown {
  if (typeof value !== "object" || value === null) return undefined;
  return Object.entries(value).find(([key]) => key === name)?.[1];
}

function formatModel(value: unknown): string | null {
  if (typeof value !== "number" || !Number.isInteger(value) || value < 0 || value > ANY_MODEL) return null;
  return value.toString(16).toUpperCase().padStart(4, "0");
}

function formatVersion(value: unknown): string | null {
  if (typeof value !== "number" || !Number.isInteger(value)) return null;
  if (value < FIRST_VERSION || value >= NO_VERSION) return null;
  const [major, minor, patch, beta] = [24, 16, 8, 0].map((bits) => (value >>> bits) & 0xff);
  return `${major}.${minor}.${patch}${beta ? `-beta.${beta}` : ""}`;
}
