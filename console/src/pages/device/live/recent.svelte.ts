/** The latest events of a device. */
import { Resource } from "../../../api/resource.svelte";
import { type Sample, readSamples, sampleKey } from "../samples";

const KEPT = 5;

export class Recent {
  readonly answer = new Resource<readonly Sample[]>();
  readonly items = $derived(this.answer.value ?? []);

  constructor(readonly deviceId: string) {}

  async load(): Promise<void> {
    await this.answer.load(
      async (signal) => (await readSamples(this.deviceId, ["event"], KEPT, signal)).items,
    );
  }

  take(samples: readonly Sample[]): void {
    const events = samples.filter((sample) => sample.kind === "event").toReversed();
    if (events.length > 0) this.answer.applyChange((items) => newest([...events, ...items]), []);
  }
}

/** One that is told twice is the same one. */
function newest(events: readonly Sample[]): readonly Sample[] {
  const all = new Map(events.map((event) => [sampleKey(event), event]));
  return [...all.values()].sort((a, b) => Date.parse(b.time) - Date.parse(a.time)).slice(0, KEPT);
}
