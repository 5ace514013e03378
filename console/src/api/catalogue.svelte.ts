/** Catalogue of identifiers and product names, loaded from the service on first use. */
import { type Schemas, api, requireBody, describeError } from "./client";
import { retryOnReconnect } from "./reconnect-retries";
import { session } from "./session.svelte";

export type CatalogueEntry = Schemas["CatalogueEntry"];

class Catalogue {
  /** Identifiers in numerical order; empty until loaded. */
  entries = $state.raw<readonly CatalogueEntry[]>([]);
  /** Error of the last load. Pages work without the catalogue and show plain identifiers. */
  problem = $state<string | null>(null);

  #entries = $derived(
    new Map(this.entries.flatMap((each) => [each.identifier, each.name].map((word) => [word, each]))),
  );
  #products = $state.raw<ReadonlyMap<string, string>>(new Map());
  /** Model numbers that stand for exactly one product. */
  models = $derived([...this.#products.keys()].sort());
  #loading: Promise<void> | null = null;
  readonly #retry = (): void => void this.load();

  /** Load the catalogue unless it is loaded. After a failure the next call or a reconnect tries again. */
  async load(): Promise<void> {
    if (session.token === null) return;
    this.#loading ??= this.#fetch();
    await this.#loading;
  }

  /** Return the entry of an identifier, by hex in either case or by name; null if unknown or not loaded. */
  find(word: string): CatalogueEntry | null {
    return this.#entries.get(word) ?? this.#entries.get(word.toLowerCase()) ?? null;
  }

  /** Return the unit of an identifier; null if it is unknown or has none. */
  getUnit(word: string): string | null {
    return this.find(word)?.unit ?? null;
  }

  /** Return the product name of a model; null if the number is unknown or stands for several products. */
  getProductName(modelNumber: string): string | null {
    return this.#products.get(modelNumber) ?? null;
  }

  async #fetch(): Promise<void> {
    try {
      const body = requireBody(await api.GET("/api/v1/catalogue"));
      this.entries = body.identifiers;
      this.#products = new Map(
        body.products.filter((each) => each.variant === null).map((each) => [each.modelNumber, each.name]),
      );
      this.problem = null;
    } catch (error) {
      this.problem = describeError(error);
      this.#loading = null;
      retryOnReconnect(this.#retry);
    }
  }
}

export const catalogue = new Catalogue();
