/** Upload of a firmware: its progress and speed, and a guard against leaving the page meanwhile. */
import type { Schemas } from "../../../api/client";
import { type UploadProgress, upload } from "../../../api/upload";
import { router } from "../../../router.svelte";

/** Milliseconds over which the speed is measured, and the shortest span that gives a speed. */
const SPEED_WINDOW = 4000;
const MIN_SPEED_SPAN = 400;

export class FirmwareUpload {
  isBusy = $state(false);
  sent = $state.raw<UploadProgress | null>(null);
  /** Bytes per second; null until it is measured. */
  speed = $state<number | null>(null);
  /** Whether the user tried to leave during the upload. */
  isLeaving = $state(false);
  /** Whether all bytes are sent: without a response it is then unknown whether the service stored the firmware. */
  isSent = $derived(this.sent !== null && this.sent.bytes >= this.sent.total);

  #request: AbortController | null = null;
  #samples: { at: number; bytes: number }[] = [];

  /** Upload the form and return the new firmware; null: the upload was canceled. */
  async run(form: FormData): Promise<Schemas["Firmware"] | null> {
    const request = new AbortController();
    const unguard = router.guard(() => this.requestLeave());
    this.#request = request;
    this.#samples = [{ at: performance.now(), bytes: 0 }];
    this.isBusy = true;
    this.sent = null;
    this.speed = null;
    try {
      return await upload<Schemas["Firmware"]>("/api/v1/firmware", form, request.signal, (sent) => this.#updateProgress(sent));
    } catch (error) {
      if (request.signal.aborted) return null;
      throw error;
    } finally {
      unguard();
      this.#request = null;
      this.isBusy = false;
      this.isLeaving = false;
    }
  }

  cancel(): void {
    this.#request?.abort();
  }

  /** Return whether the page may be left. During an upload set `isLeaving`, which shows a warning. */
  requestLeave(): boolean {
    this.isLeaving = this.isBusy;
    return !this.isBusy;
  }

  #updateProgress(sent: UploadProgress): void {
    const now = performance.now();
    this.sent = sent;
    this.#samples = [...this.#samples.filter(({ at }) => now - at <= SPEED_WINDOW), { at: now, bytes: sent.bytes }];
    const first = this.#samples[0];
    if (first && now - first.at >= MIN_SPEED_SPAN) this.speed = ((sent.bytes - first.bytes) / (now - first.at)) * 1000;
  }
}
