/** What identifiers mean and products are called, as the service knows it: read once, when it is first needed. */
import { type Schemas, api, requireBody, describeError } from "./client";
import { retryOnReconnect } from "./reconnect-retries";
import { session } from "./session.svelte";

export type CatalogueEntry = Schemas["CatalogueEntry"];

class Catalogue {
  /** All identifiers in the order of their numbers; none until they are known. */
  entries = $state.raw<readonly CatalogueEntry[]>([]);
  /** Why it could not be read. Pages work without it: they show identifiers as they are. */
  problem = $state<string | null>(null);

  #byWord = $derived(
    new Map(this.entries.flatMap((each) => [each.identifier, each.name].map((word) => [word, each]))),
  );
  #products = $state.raw<ReadonlyMap<string, string>>(new Map());
  /** The models that are a product each. */
  models = $derived([...this.#products.keys()].sort());
  #reading: Promise<void> | null = null;
  readonly #retry = (): void => void this.load();

  /** Have it read, unless it is. Whoever shows identifiers calls this; after a failure the next one tries again, or
   * the service being back. */
  async load(): Promise<void> {
    if (session.token === null) return;
    this.#reading ??= this.#read();
    await this.#reading;
  }

  /** What is known of an identifier, by its hex in either case or its name; null while or where nothing is. */
  find(word: string): CatalogueEntry | null {
    return this.#byWord.get(word) ?? this.#byWord.get(word.toLowerCase()) ?? null;
  }

  /** The unit of its values; null while unknown, and where it has none. */
  getUnit(word: string): string | null {
    return this.find(word)?.unit ?? null;
  }

  /** What a model is called; null where its number stands for several products, or for none that is known. */
  getProductName(modelNumber: string): string | null {
    return this.#products.get(modelNumber) ?? null;
  }

  async #read(): Promise<void> {
    try {
      const told = requireBody(await api.GET("/api/v1/catalogue"));
      this.entries = told.identifiers;
      this.#products = new Map(
        told.products.filter((each) => each.variant === null).map((each) => [each.modelNumber, each.name]),
      );
      this.problem = null;
    } catch (error) {
      this.problem = describeError(error);
      this.#reading = null;
      retryOnReconnect(this.#retry);
    }
  }
}

export const catalogue = new Catalogue();
