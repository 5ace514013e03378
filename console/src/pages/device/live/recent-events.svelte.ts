/** Latest events of a device. */
import { Resource } from "../../../api/resource.svelte";
import { type Sample, readSamples, sampleKey } from "../samples";

const MAX_EVENTS = 5;

export class RecentEvents {
  readonly resource = new Resource<readonly Sample[]>();
  readonly items = $derived(this.resource.value ?? []);

  constructor(readonly deviceId: string) {}

  async load(): Promise<void> {
    await this.resource.load(
      async (signal) => (await readSamples(this.deviceId, ["event"], MAX_EVENTS, signal)).items,
    );
  }

  add(samples: readonly Sample[]): void {
    const events = samples.filter((sample) => sample.kind === "event").toReversed();
    if (events.length > 0) this.resource.applyChange((items) => pickNewest([...events, ...items]), []);
  }
}

/** Return the newest events, without duplicates: a report can arrive twice. */
function pickNewest(events: readonly Sample[]): readonly Sample[] {
  const all = new Map(events.map((event) => [sampleKey(event), event]));
  return [...all.values()].sort((a, b) => Date.parse(b.time) - Date.parse(a.time)).slice(0, MAX_EVENTS);
}
