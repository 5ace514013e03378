/** Device on which the pointer or the focus is, with the readings that its position follows from. */
import { type Schemas, api, requireBody } from "../../../../api/client";
import { Resource } from "../../../../api/resource.svelte";

/** Milliseconds until readings are loaded: the pointer passes over many devices. */
const DELAY = 150;

export class Preview {
  /** Id of the device; null for none. */
  id = $state<string | null>(null);
  readonly answer = new Resource<Schemas["PositionAnswer"]>();
  #timer: ReturnType<typeof setTimeout> | undefined;

  /** Show another device, or none. */
  show(id: string | null): void {
    if (id === this.id) return;
    this.stop();
    this.answer.value = null;
    this.answer.problem = null;
    this.id = id;
    if (id !== null) this.#timer = setTimeout(() => void this.#load(id), DELAY);
  }

  stop(): void {
    clearTimeout(this.#timer);
    this.answer.stop();
  }

  async #load(id: string): Promise<void> {
    const params = { path: { device_id: id } };
    await this.answer.load(async (signal) => requireBody(await api.GET("/api/v1/devices/{device_id}/position", { params, signal })));
  }
}
