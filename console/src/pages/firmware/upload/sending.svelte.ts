/** An upload under way: how far it is, how fast, and that nobody leaves by mistake. */
import type { Schemas } from "../../../api/client";
import { type UploadProgress, upload } from "../../../api/upload";
import { router } from "../../../router.svelte";

/** Milliseconds over which the speed is measured, and from which on it means something. */
const WINDOW = 4000;
const ENOUGH = 400;

export class Sending {
  isBusy = $state(false);
  sent = $state.raw<UploadProgress | null>(null);
  /** Bytes a second; null until it is known. */
  speed = $state<number | null>(null);
  /** Whether the reader wanted to leave meanwhile. */
  isLeaving = $state(false);
  /** Whether all of it is sent: from then on nobody knows whether it is kept, until the service says so. */
  isSent = $derived(this.sent !== null && this.sent.bytes >= this.sent.total);

  #asking: AbortController | null = null;
  #marks: { at: number; bytes: number }[] = [];

  /** null: it was cancelled. */
  async run(form: FormData): Promise<Schemas["Firmware"] | null> {
    const asking = new AbortController();
    const unguard = router.guard(() => this.mayLeave());
    this.#asking = asking;
    this.#marks = [{ at: performance.now(), bytes: 0 }];
    this.isBusy = true;
    this.sent = null;
    this.speed = null;
    try {
      return await upload<Schemas["Firmware"]>("/api/v1/firmware", form, asking.signal, (sent) => this.#hear(sent));
    } catch (error) {
      if (asking.signal.aborted) return null;
      throw error;
    } finally {
      unguard();
      this.#asking = null;
      this.isBusy = false;
      this.isLeaving = false;
    }
  }

  cancel(): void {
    this.#asking?.abort();
  }

  /** Who may not is told why. */
  mayLeave(): boolean {
    this.isLeaving = this.isBusy;
    return !this.isBusy;
  }

  #hear(sent: UploadProgress): void {
    const now = performance.now();
    this.sent = sent;
    this.#marks = [...this.#marks.filter(({ at }) => now - at <= WINDOW), { at: now, bytes: sent.bytes }];
    const first = this.#marks[0];
    if (first && now - first.at >= ENOUGH) this.speed = ((sent.bytes - first.bytes) / (now - first.at)) * 1000;
  }
}
