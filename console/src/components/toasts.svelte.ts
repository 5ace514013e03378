/** Toasts about finished or failed actions. A success disappears after a while or with the next one, a failure when it
 * is dismissed. */
interface Toast {
  readonly id: number;
  readonly text: string;
  readonly tone: "ok" | "bad";
}

const SUCCESS_DURATION = 6000;

class Toasts {
  shown = $state.raw<readonly Toast[]>([]);
  #nextId = 1;

  showSuccess(text: string): void {
    this.shown = this.shown.filter((toast) => toast.tone === "bad");
    const id = this.#show(text, "ok");
    setTimeout(() => this.dismiss(id), SUCCESS_DURATION);
  }

  showError(text: string): void {
    this.#show(text, "bad");
  }

  dismiss(id: number): void {
    this.shown = this.shown.filter((toast) => toast.id !== id);
  }

  /** Remove all toasts when another user signs in. */
  clear(): void {
    this.shown = [];
  }

  #show(text: string, tone: Toast["tone"]): number {
    const id = this.#nextId++;
    this.shown = [...this.shown, { id, text, tone }];
    return id;
  }
}

export const toasts = new Toasts();
