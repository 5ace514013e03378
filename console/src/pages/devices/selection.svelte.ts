/** Which devices are selected: some of those that are listed, or all that match, listed or not. */
import { SvelteSet } from "svelte/reactivity";

export class Selection {
  readonly ids = new SvelteSet<string>();
  /** All that match, also those that were never listed. */
  isAll = $state(false);
  /** Where a range begins. */
  #anchor: string | null = null;

  get isEmpty(): boolean {
    return !this.isAll && this.ids.size === 0;
  }

  has(id: string): boolean {
    return this.isAll || this.ids.has(id);
  }

  /** Select a device or not; with `isRange` all from the last one on which that was done. */
  toggle(id: string, listed: readonly string[], isRange: boolean): void {
    const isOn = !this.has(id);
    if (this.isAll) this.selectListed(listed);
    for (const each of isRange ? between(listed, this.#anchor, id) : [id]) {
      if (isOn) this.ids.add(each);
      else this.ids.delete(each);
    }
    this.#anchor = id;
  }

  selectListed(listed: readonly string[]): void {
    this.isAll = false;
    for (const id of listed) this.ids.add(id);
  }

  selectAll(): void {
    this.ids.clear();
    this.isAll = true;
  }

  /** These alone, such as those for which something failed. */
  keep(ids: readonly string[]): void {
    this.clear();
    for (const id of ids) this.ids.add(id);
  }

  clear(): void {
    this.ids.clear();
    this.isAll = false;
    this.#anchor = null;
  }
}

function between(listed: readonly string[], from: string | null, to: string): readonly string[] {
  const ends = [from === null ? -1 : listed.indexOf(from), listed.indexOf(to)];
  if (Math.min(...ends) < 0) return [to];
  return listed.slice(Math.min(...ends), Math.max(...ends) + 1);
}
