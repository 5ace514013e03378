/** Image file to upload: checked and hashed as soon as it is chosen. A newer choice replaces an older one. */
import { en } from "../../../text/en";
import { computeSha256, detectType, isReadable } from "./image";
import { type PackageInfo, isZip, readPackage } from "./nordic-package";

const words = en.firmware.upload.errors;

export class ImageFile {
  file = $state.raw<File | null>(null);
  /** Hash of the file; null while it is computed, or if the browser cannot compute it. */
  sha256 = $state<string | null>(null);
  /** Whether the file is a zip, as Nordic packages are; null: not known yet. */
  isZip = $state<boolean | null>(null);
  /** Model and version from the manifest of the package; null until it is read. */
  manifest = $state.raw<PackageInfo | null>(null);
  isReading = $state(false);
  /** Why the file cannot be uploaded; null: it can. */
  fault = $state<string | null>(null);

  /** Check, hash and read the first of these files. More than one file is a fault. */
  async load(files: readonly File[]): Promise<void> {
    const [file] = files;
    if (file === undefined) return;
    this.file = file;
    this.sha256 = null;
    this.isZip = null;
    this.manifest = null;
    this.fault = files.length > 1 ? en.common.dropZone.several : this.#findFault(file);
    this.isReading = this.fault === null;
    if (!this.isReading) return;
    const isFileReadable = await isReadable(file);
    const sha256 = isFileReadable ? await computeSha256(file).catch(() => undefined) : undefined;
    const isZipFile = sha256 === undefined ? null : await isZip(file).catch(() => null);
    const manifest = isZipFile ? await readPackage(file) : null;
    if (this.file !== file) return;
    this.isReading = false;
    this.isZip = isZipFile;
    this.manifest = manifest;
    if (sha256 === undefined) this.fault = en.common.dropZone.unreadable(file.name);
    else this.sha256 = sha256;
  }

  /** Check again whether the file is readable: a failed upload may be caused by the file. */
  async checkReadable(): Promise<void> {
    const { file } = this;
    if (file !== null && !(await isReadable(file)) && this.file === file) this.fault = en.common.dropZone.unreadable(file.name);
  }

  #findFault(file: File): string | null {
    if (detectType(file.name) === null) return words.ending(file.name);
    return file.size === 0 ? words.empty(file.name) : null;
  }
}
