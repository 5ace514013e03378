/** What is told about an image, and what is wrong with it before anybody sends it: as the service will see it. */
import { Problem } from "../../../api/client";
import { MAX_NOTES_LENGTH } from "../../../api/limits";
import { en } from "../../../text/en";
import { formatBytes, formatCount, toSentence } from "../../../text/format";
import { type Version, isBeta, isOlder, parseVersion } from "../../../text/versions";
import { isModel } from "../filters";
import { LARGEST_PACKAGE, type Type } from "./image";

export interface Typed {
  modelNumber: string;
  version: string;
  /** Versions with commas between them. */
  hardwareVersions: string;
  minVersion: string;
  notes: string;
  type: Type;
  bare: boolean;
  override: boolean;
}

/** The parts of the form, as the interface calls them. */
export type Part = "image" | keyof Typed;
export type Faults = Partial<Record<Part, string>>;

const words = en.firmware.upload;
/** In each part of a version: devices have a byte for it. */
const MOST = 255;
const TOO_LARGE = 413;

function partsOf(text: string): string[] {
  return text.split(/[,;\s]+/).filter((part) => part !== "");
}

export function faultsIn(typed: Typed): Faults {
  const faults: Faults = {};
  const version = versionIn(typed.version);
  const min = versionIn(typed.minVersion);
  const odd = partsOf(typed.hardwareVersions).find((each) => !isHardware(each));
  const length = [...typed.notes].length;
  if (!isModel(typed.modelNumber.trim())) faults.modelNumber = words.errors.model;
  if (version === null) faults.version = words.errors.version;
  if (odd !== undefined) faults.hardwareVersions = words.errors.hardware(odd);
  if (typed.minVersion.trim() !== "" && min === null) faults.minVersion = words.errors.version;
  if (version !== null && min !== null && isOlder(version, min)) faults.minVersion = words.errors.min;
  if (length > MAX_NOTES_LENGTH) faults.notes = words.errors.notes(formatCount(length), formatCount(MAX_NOTES_LENGTH));
  return faults;
}

export function faultOfSize(size: number, type: Type): string | null {
  if (type !== "1" || size <= LARGEST_PACKAGE) return null;
  return words.errors.large(formatBytes(size), formatBytes(LARGEST_PACKAGE));
}

/** What is wrong with calling an image bare, or not; `isZip` is null while that is not known. */
export function faultOfKind(isZip: boolean | null, { type, bare }: Typed): string | null {
  if (type !== "1" || isZip === null || isZip !== bare) return null;
  return bare ? words.errors.package : words.errors.bare;
}

/** Whether the service would accept the image all the same, if an admin insists. */
export function isOverridable(error: unknown): boolean {
  return error instanceof Problem && error.code === "image-check-failed";
}

/** What the service refuses, told where it is; null: it is about none of the fields. */
export function faultsOf(error: unknown): Faults | null {
  if (!(error instanceof Problem)) return null;
  if (error.code === "already-exists") return { version: toSentence(error.message) };
  if (error.status === TOO_LARGE) return { image: toSentence(error.message) };
  const faults: Faults = {};
  for (const { field, message } of error.faults) {
    const name = field.replace(/\[\d+\]$/, "");
    // How to insist is a checkbox of its own.
    if (name === "override" && isOverridable(error)) continue;
    if (!isNamed(name)) return null;
    faults[name === "sha256" ? "image" : name] = toSentence(`${words.refusal[name]} ${message}`);
  }
  return Object.keys(faults).length > 0 ? faults : null;
}

/** All of it as it is sent. */
export function formOf(typed: Typed, file: File, sha256: string | null): FormData {
  const form = new FormData();
  // Fields first: what is wrong with them is known before the image is there.
  form.append("modelNumber", typed.modelNumber.trim());
  form.append("version", typed.version.trim());
  for (const each of partsOf(typed.hardwareVersions)) form.append("hardwareVersions", each);
  if (typed.minVersion.trim() !== "") form.append("minVersion", typed.minVersion.trim());
  if (typed.notes.trim() !== "") form.append("notes", typed.notes.trim());
  form.append("type", typed.type);
  if (typed.type === "1" && typed.bare) form.append("bare", "true");
  if (typed.override) form.append("override", "true");
  if (sha256 !== null) form.append("sha256", sha256);
  form.append("image", file, file.name);
  return form;
}

function isNamed(name: string): name is keyof typeof words.refusal {
  return Object.hasOwn(words.refusal, name);
}

function versionIn(text: string): Version | null {
  const version = parseVersion(text.trim());
  return version !== null && version.slice(0, 3).every((part) => part <= MOST) ? version : null;
}

function isHardware(text: string): boolean {
  const version = versionIn(text);
  return version !== null && !isBeta(version);
}
