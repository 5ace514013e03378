/** The image that is to be uploaded: checked and hashed as soon as it is chosen. The newest choice counts. */
import { en } from "../../../text/en";
import { hashOf, isReadable, typeOf } from "./image";
import { type Said, isZip, readPackage } from "./package";

const words = en.firmware.upload.errors;

export class Chosen {
  file = $state.raw<File | null>(null);
  /** null while it is computed, and where the browser does not compute it. */
  sha256 = $state<string | null>(null);
  /** Whether it is a zip, as packages are; null while that is not known. */
  isZip = $state<boolean | null>(null);
  /** Model and version as the package says them; null until it is read. */
  said = $state.raw<Said | null>(null);
  isReading = $state(false);
  /** Why it cannot be uploaded. */
  fault = $state<string | null>(null);

  async take(files: readonly File[]): Promise<void> {
    const [file] = files;
    if (file === undefined) return;
    this.file = file;
    this.sha256 = null;
    this.isZip = null;
    this.said = null;
    this.fault = files.length > 1 ? words.several : this.#faultOf(file);
    this.isReading = this.fault === null;
    if (!this.isReading) return;
    const isGood = await isReadable(file);
    const sha256 = isGood ? await hashOf(file).catch(() => undefined) : undefined;
    const zip = sha256 === undefined ? null : await isZip(file).catch(() => null);
    const said = zip ? await readPackage(file) : null;
    if (this.file !== file) return;
    this.isReading = false;
    this.isZip = zip;
    this.said = said;
    if (sha256 === undefined) this.fault = words.unreadable(file.name);
    else this.sha256 = sha256;
  }

  /** Look at it once more: an upload that fails may do so because of the file. */
  async check(): Promise<void> {
    const { file } = this;
    if (file !== null && !(await isReadable(file)) && this.file === file) this.fault = words.unreadable(file.name);
  }

  #faultOf(file: File): string | null {
    if (typeOf(file.name) === null) return words.ending(file.name);
    return file.size === 0 ? words.empty(file.name) : null;
  }
}
