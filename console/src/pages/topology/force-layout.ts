/** Layout from forces, computed in a worker, so that the page stays responsive. */
import type { ForceRequest, ForceResponse } from "./force-worker";
import { type Layout, buildLayout } from "./layouts";

export class ForceLayouts {
  #worker: Worker | null = null;
  #number = 0;

  /** Compute the layout of the nodes of another one, which is the start. Only the newest request is answered: call
   * `done` with the layout, or with null if the browser cannot run the worker. */
  compute(start: Layout, done: (layout: Layout | null) => void): void {
    // A worker cannot be interrupted: one that computes an outdated layout is replaced.
    this.stop();
    const worker = new Worker(new URL("./force-worker.ts", import.meta.url), { type: "module" });
    this.#worker = worker;
    const number = (this.#number += 1);
    worker.addEventListener("message", ({ data }: MessageEvent<ForceResponse>) => {
      if (data.number !== this.#number) return;
      this.stop();
      done(buildLayout("force", start.nodes, start.indexes, data.x, data.y));
    });
    worker.addEventListener("error", () => {
      this.stop();
      done(null);
    });
    const parents = Int32Array.from(start.nodes, ({ parent }) => (parent === null ? -1 : (start.indexes.get(parent.mac) ?? -1)));
    const request: ForceRequest = { number, parents, x: start.x, y: start.y };
    worker.postMessage(request);
  }

  stop(): void {
    this.#worker?.terminate();
    this.#worker = null;
  }
}
