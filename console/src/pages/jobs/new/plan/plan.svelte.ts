/** How a job goes about it, as it is typed. What holds unless somebody changes it is careful: a few devices first, and a
 * stop when too many fail. */
import type { Schemas } from "../../../../api/client";

export type Unit = "percent" | "count";
export type Method = NonNullable<Schemas["NewJob"]["method"]>;

export interface WaveRow {
  /** Tells rows apart. */
  readonly key: number;
  name: string;
  amount: string;
  unit: Unit;
}

export interface StopRow {
  readonly key: number;
  type: Schemas["Criterion"]["type"];
  percent: string;
  least: string;
  action: Schemas["Criterion"]["action"];
}

/** As many as the service takes. */
export const MOST_WAVES = 50;
export const MOST_STOPS = 10;

export class Plan {
  /** Empty: as is suggested. */
  name = $state("");
  rollout = $state<"canary" | "waves" | "once">("canary");
  canary = $state<{ amount: string; unit: Unit }>({ amount: "5", unit: "percent" });
  waves = $state<WaveRow[]>([
    { key: 1, name: "", amount: "5", unit: "percent" },
    { key: 2, name: "", amount: "50", unit: "percent" },
  ]);
  gate = $state({ success: "95", soak: "0", pause: false });
  stops = $state<StopRow[]>([{ key: 1, type: "ALL", percent: "20", least: "5", action: "PAUSE" }]);
  start = $state<"now" | "later" | "hand">("now");
  /** In the reader's own time, as the control has it. */
  startAt = $state("");
  deadline = $state("");
  method = $state<Method | "">("");
  stage = $state(false);
  allowDowngrade = $state(false);
  onNewerJob = $state<Schemas["NewJob"]["onNewerJob"]>("queue");
  limits = $state({ perGateway: "1", perJob: "", perMinute: "" });
  retry = $state({ max: "2", seconds: "60" });
  timeouts = $state({ queueDays: "7", step: "10", total: "" });
  heartbeats = $state("3");

  readonly #untouched = this.text;

  /** Whether anything is not as it was in the beginning. */
  get isTouched(): boolean {
    return this.text !== this.#untouched;
  }

  /** All of it, to be kept. */
  get text(): string {
    const { name, rollout, canary, waves, gate, stops, start, startAt, deadline, method, stage } = this;
    const { allowDowngrade, onNewerJob, limits, retry, timeouts, heartbeats } = this;
    return JSON.stringify({
      ...{ name, rollout, canary, waves, gate, stops, start, startAt, deadline, method, stage },
      ...{ allowDowngrade, onNewerJob, limits, retry, timeouts, heartbeats },
    });
  }

  /** Be what was kept. */
  restore(text: string): void {
    Object.assign(this, JSON.parse(text));
  }

  addWave(): void {
    this.waves.push({ key: nextKey(this.waves), name: "", amount: "", unit: this.waves.at(-1)?.unit ?? "percent" });
  }

  addStop(): void {
    this.stops.push({ key: nextKey(this.stops), type: "ALL", percent: "20", least: "5", action: "PAUSE" });
  }
}

function nextKey(rows: readonly { readonly key: number }[]): number {
  return Math.max(0, ...rows.map(({ key }) => key)) + 1;
}
