/** Values of the upload form and their validation, with the rules of the service. */
import { Problem } from "../../../api/client";
import { MAX_NOTES_LENGTH } from "../../../api/limits";
import { en } from "../../../text/en";
import { formatBytes, formatCount, toSentence } from "../../../text/format";
import { type Version, isBeta, isOlder, parseVersion } from "../../../text/versions";
import { isModelNumber } from "../filters";
import { type ImageType, MAX_PACKAGE_SIZE } from "./image";

export interface FormValues {
  modelNumber: string;
  version: string;
  /** Versions separated by commas or spaces. */
  hardwareVersions: string;
  minVersion: string;
  notes: string;
  type: ImageType;
  bare: boolean;
  override: boolean;
}

/** Fields of the form, named as in the REST interface. */
export type FieldName = "image" | keyof FormValues;
export type Faults = Partial<Record<FieldName, string>>;

const words = en.firmware.upload;
/** Maximum of each part of a version: devices store it in one byte. */
const MAX_VERSION_PART = 255;
/** HTTP status: content too large. */
const TOO_LARGE = 413;

function splitVersions(text: string): string[] {
  return text.split(/[,;\s]+/).filter((part) => part !== "");
}

export function validateForm(values: FormValues): Faults {
  const faults: Faults = {};
  const version = parseTypedVersion(values.version);
  const minVersion = parseTypedVersion(values.minVersion);
  const invalid = splitVersions(values.hardwareVersions).find((each) => !isHardwareVersion(each));
  const length = [...values.notes].length;
  if (!isModelNumber(values.modelNumber.trim())) faults.modelNumber = words.errors.model;
  if (version === null) faults.version = words.errors.version;
  if (invalid !== undefined) faults.hardwareVersions = words.errors.hardware(invalid);
  if (values.minVersion.trim() !== "" && minVersion === null) faults.minVersion = words.errors.version;
  if (version !== null && minVersion !== null && isOlder(version, minVersion)) faults.minVersion = words.errors.min;
  if (length > MAX_NOTES_LENGTH) faults.notes = words.errors.notes(formatCount(length), formatCount(MAX_NOTES_LENGTH));
  return faults;
}

export function validateSize(size: number, type: ImageType): string | null {
  if (type !== "1" || size <= MAX_PACKAGE_SIZE) return null;
  return words.errors.large(formatBytes(size), formatBytes(MAX_PACKAGE_SIZE));
}

/** Return a fault if the file does not match the choice of a bare image or a package. `isZip` is null while unknown. */
export function validateKind(isZip: boolean | null, { type, bare }: FormValues): string | null {
  if (type !== "1" || isZip === null || isZip !== bare) return null;
  return bare ? words.errors.package : words.errors.bare;
}

/** Return whether an admin can make the service accept the image despite this error. */
export function isOverridable(error: unknown): boolean {
  return error instanceof Problem && error.code === "image-check-failed";
}

/** Return the faults of an error response by field; null: the error is about no field of the form. */
export function parseServerFaults(error: unknown): Faults | null {
  if (!(error instanceof Problem)) return null;
  if (error.code === "already-exists") return { version: toSentence(error.message) };
  if (error.status === TOO_LARGE) return { image: toSentence(error.message) };
  const faults: Faults = {};
  for (const { field, message } of error.faults) {
    const name = field.replace(/\[\d+\]$/, "");
    // The override has its own checkbox.
    if (name === "override" && isOverridable(error)) continue;
    if (!isRefusalField(name)) return null;
    faults[name === "sha256" ? "image" : name] = toSentence(`${words.refusal[name]} ${message}`);
  }
  return Object.keys(faults).length > 0 ? faults : null;
}

/** Return the form as it is sent. */
export function buildFormData(values: FormValues, file: File, sha256: string | null): FormData {
  const form = new FormData();
  // Fields before the image: the service can refuse them before it has received the image.
  form.append("modelNumber", values.modelNumber.trim());
  form.append("version", values.version.trim());
  for (const each of splitVersions(values.hardwareVersions)) form.append("hardwareVersions", each);
  if (values.minVersion.trim() !== "") form.append("minVersion", values.minVersion.trim());
  if (values.notes.trim() !== "") form.append("notes", values.notes.trim());
  form.append("type", values.type);
  if (values.type === "1" && values.bare) form.append("bare", "true");
  if (values.override) form.append("override", "true");
  if (sha256 !== null) form.append("sha256", sha256);
  form.append("image", file, file.name);
  return form;
}

function isRefusalField(name: string): name is keyof typeof words.refusal {
  return Object.hasOwn(words.refusal, name);
}

function parseTypedVersion(text: string): Version | null {
  const version = parseVersion(text.trim());
  return version !== null && version.slice(0, 3).every((part) => part <= MAX_VERSION_PART) ? version : null;
}

function isHardwareVersion(text: string): boolean {
  const version = parseTypedVersion(text);
  return version !== null && !isBeta(version);
}
