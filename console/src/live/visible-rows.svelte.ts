/** Ids of the visible rows, to subscribe only to those. */
const DEBOUNCE = 200;

type Attachment = (row: Element) => () => void;

export class VisibleRows {
  /** Ids of the visible rows in alphabetical order; updated when scrolling has stopped. */
  ids = $state.raw<readonly string[]>([]);

  #visibleIds = new Set<string>();
  #rows = new Map<Element, string>();
  #attachments = new Map<string, Attachment>();
  #timer: ReturnType<typeof setTimeout> | undefined;
  #observer = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      const id = this.#rows.get(entry.target);
      if (id !== undefined) this.#setVisible(id, entry.isIntersecting);
    }
  });

  /** Return the attachment that observes the row of an id: `<tr {@attach visible.row(id)}>`. The same id always gets
   * the same attachment, so that a changed row is not observed again. */
  row(id: string): Attachment {
    const existing = this.#attachments.get(id);
    if (existing) return existing;
    const attachment: Attachment = (row) => {
      this.#rows.set(row, id);
      this.#observer.observe(row);
      return () => {
        this.#observer.unobserve(row);
        this.#rows.delete(row);
        this.#setVisible(id, false);
      };
    };
    this.#attachments.set(id, attachment);
    return attachment;
  }

  stop(): void {
    clearTimeout(this.#timer);
    this.#observer.disconnect();
  }

  #setVisible(id: string, isSeen: boolean): void {
    if (isSeen) this.#visibleIds.add(id);
    else this.#visibleIds.delete(id);
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => this.#publish(), DEBOUNCE);
  }

  #publish(): void {
    const now = [...this.#visibleIds].sort();
    if (now.join() !== this.ids.join()) this.ids = now;
  }
}
