/** Short words about what was done, or could not be: they go by themselves or with the next deed, failures when somebody
 * has read them. */
interface Toast {
  readonly id: number;
  readonly text: string;
  readonly tone: "ok" | "bad";
}

const FOR = 6000;

class Toasts {
  shown = $state.raw<readonly Toast[]>([]);
  #next = 1;

  showSuccess(text: string): void {
    this.shown = this.shown.filter((toast) => toast.tone === "bad");
    const id = this.#show(text, "ok");
    setTimeout(() => this.dismiss(id), FOR);
  }

  showError(text: string): void {
    this.#show(text, "bad");
  }

  dismiss(id: number): void {
    this.shown = this.shown.filter((toast) => toast.id !== id);
  }

  /** Somebody signs in: what others did is none of their business. */
  clear(): void {
    this.shown = [];
  }

  #show(text: string, tone: Toast["tone"]): number {
    const id = this.#next++;
    this.shown = [...this.shown, { id, text, tone }];
    return id;
  }
}

export const toasts = new Toasts();
