/** Order of devices by name. */

interface NamedDevice {
  readonly device: string;
  readonly name: string;
}

/** Order by names as people count, 2 before 10. Comparing ten thousand names takes long, so the order is kept until a
 * device comes, leaves or is renamed. */
export class NameOrder {
  readonly #collator = new Intl.Collator("en", { numeric: true });
  #sorted: readonly NamedDevice[] = [];

  /** Return the devices in order: the same list as before if nothing but their positions has changed. */
  sort(devices: ReadonlyMap<string, NamedDevice>): readonly NamedDevice[] {
    const isSame = this.#sorted.length === devices.size && this.#sorted.every(({ device, name }) => devices.get(device)?.name === name);
    if (!isSame) {
      this.#sorted = [...devices.values()]
        .map(({ device, name }) => ({ device, name }))
        .sort((one, other) => this.#collator.compare(one.name, other.name) || this.#collator.compare(one.device, other.device));
    }
    return this.#sorted;
  }
}
