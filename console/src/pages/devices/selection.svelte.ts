/** Selected devices: some of those listed, or all that match the filter, listed or not. */
import { SvelteSet } from "svelte/reactivity";

export class Selection {
  readonly ids = new SvelteSet<string>();
  /** Whether all matching devices are selected, including those not listed. */
  isAll = $state(false);
  /** Device at which a range starts. */
  #anchor: string | null = null;

  get isEmpty(): boolean {
    return !this.isAll && this.ids.size === 0;
  }

  has(id: string): boolean {
    return this.isAll || this.ids.has(id);
  }

  /** Select or deselect a device; with `isRange` all devices from the one toggled last. */
  toggle(id: string, listed: readonly string[], isRange: boolean): void {
    const isOn = !this.has(id);
    if (this.isAll) this.selectListed(listed);
    for (const each of isRange ? sliceBetween(listed, this.#anchor, id) : [id]) {
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

  /** Select only these devices, for example those for which an action failed. */
  selectOnly(ids: readonly string[]): void {
    this.clear();
    for (const id of ids) this.ids.add(id);
  }

  clear(): void {
    this.ids.clear();
    this.isAll = false;
    this.#anchor = null;
  }
}

function sliceBetween(listed: readonly string[], from: string | null, to: string): readonly string[] {
  const ends = [from === null ? -1 : listed.indexOf(from), listed.indexOf(to)];
  if (Math.min(...ends) < 0) return [to];
  return listed.slice(Math.min(...ends), Math.max(...ends) + 1);
}
