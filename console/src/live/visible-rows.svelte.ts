/** Ids of the visible rows, to subscribe only to those. */
const PAUSE = 200;

type Attachment = (row: Element) => () => void;

export class VisibleRows {
  /** Ids of the visible rows in alphabetical order; updated when scrolling has stopped. */
  ids = $state.raw<readonly string[]>([]);

  #inView = new Set<string>();
  #rows = new Map<Element, string>();
  #attachments = new Map<string, Attachment>();
  #timer: ReturnType<typeof setTimeout> | undefined;
  #observer = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      const id = this.#rows.get(entry.target);
      if (id !== undefined) this.#note(id, entry.isIntersecting);
    }
  });

  /** Return the attachment that observes the row of an id: `<tr {@attach visible.row(id)}>`. The same id always gets
   * the same attachment, so that a changed row is not observed again. */
  row(id: string): Attachment {
    const known = this.#attachments.get(id);
    if (known) return known;
    const made: Attachment = (row) => {
      this.#rows.set(row, id);
      this.#observer.observe(row);
      return () => {
        this.#observer.unobserve(row);
        this.#rows.delete(row);
        this.#note(id, false);
      };
    };
    this.#attachments.set(id, made);
    return made;
  }

  stop(): void {
    clearTimeout(this.#timer);
    this.#observer.disconnect();
  }

  #note(id: string, isSeen: boolean): void {
    if (isSeen) this.#inView.add(id);
    else this.#inView.delete(id);
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => this.#tell(), PAUSE);
  }

  #tell(): void {
    const now = [...this.#inView].sort();
    if (now.join() !== this.ids.join()) this.ids = now;
  }
}
