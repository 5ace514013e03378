/** A job that is not made yet: what the address says of it, what was typed, and what is still missing. */
import { catalogue } from "../../../api/catalogue.svelte";
import { type Schemas, api, requireBody } from "../../../api/client";
import { createIdempotencyKey } from "../../../api/idempotency-key";
import { Resource } from "../../../api/resource.svelte";
import { DeviceCount } from "../../../filtering/device-count.svelte";
import { clock } from "../../../clock.svelte";
import { NamedItem } from "../../../storage";
import type { PageAddress } from "../../../page-address.svelte";
import { withParam } from "../../../query";
import { en } from "../../../text/en";
import { isKnown, versionText } from "../../../text/versions";
import { STEPS, type Step, choiceIn, targetsOf, withFirmware, withStep } from "./choice";
import { orderOf } from "./plan/order";
import { Plan } from "./plan/plan.svelte";
import type { Fault } from "./plan/reading";
import { type DryRun, type NewJob, tryOut } from "./starting.svelte";

const words = en.newJob;
const PLAN = STEPS.indexOf("plan");

/** What the address calls the plan. */
const NAME = "Plan";
const plans = new NamedItem<string>("meshfleet.plan");

export class Draft {
  readonly plan = new Plan();
  /** Whether the address names a plan that nobody knows any more: the usual one stands in its place, and is looked at. */
  isPlanLost = $state(false);
  /** How many devices are meant. */
  readonly counts = new DeviceCount();
  readonly record = new Resource<Schemas["Firmware"]>();
  /** What the service says it would do. */
  readonly trial = new Resource<DryRun>();

  readonly #page: PageAddress;
  #name: string | null = null;
  readonly choice = $derived.by(() => choiceIn(this.#page.query));
  readonly targets = $derived(this.choice.targets);
  /** Null: none is chosen, or it is not known yet. */
  readonly firmware = $derived.by(() => (this.record.value?.id === this.choice.firmwareId ? this.record.value : null));
  readonly #isReading = $derived(this.choice.firmwareId !== null && this.firmware === null && !this.record.isMissing);
  /** What it is called unless somebody says otherwise. */
  readonly suggested = $derived(this.firmware === null ? "" : suggestion(this.firmware));
  readonly #read = $derived.by(() => orderOf(this.plan, this.suggested || words.title, clock.now));
  readonly order = $derived(this.#read.order);

  /** How many steps are complete, from the first on. */
  readonly complete = $derived.by(() => {
    if (!this.#isReading && this.firmware?.state !== "released") return 0;
    if (this.targets.kind === "none" || this.targets.kind === "lost") return 1;
    return this.isPlanLost || this.#read.faults.length > 0 ? PLAN : PLAN + 1;
  });
  /** The step that one is at: as the address says, as far as that is possible. */
  readonly place = $derived(Math.min(this.choice.step === null ? PLAN : STEPS.indexOf(this.choice.step), this.complete));
  readonly step = $derived(STEPS[this.place] ?? "firmware");
  /** Whether the address names what is not there any more, or a time in it has passed: that is said at once. */
  readonly isBroken = $derived(
    (this.step === "firmware" && this.choice.firmwareId !== null && this.complete === 0) ||
      (this.step === "devices" && this.targets.kind === "lost") ||
      (this.step === "plan" && this.choice.step === "review"),
  );

  constructor(page: PageAddress) {
    this.#page = page;
    const name = page.query.get(NAME);
    const text = name === null ? null : plans.read(name);
    if (text !== null) this.plan.restore(text);
    else this.isPlanLost = name !== null;
  }

  /** Keep what was planned: a reload finds it, and nobody starts what somebody else had in mind. */
  keep(): void {
    const name = this.#page.query.get(NAME) ?? this.#name ?? (this.plan.isTouched ? createIdempotencyKey() : null);
    if (name === null || this.isPlanLost) return;
    this.#name = name;
    plans.write(name, this.plan.text);
    if (!this.#page.query.has(NAME)) this.#page.replaceQuery(withParam(this.#page.query, NAME, [name]));
  }

  /** What keeps one from going on from a step. */
  faultsOf(step: Step): readonly Fault[] {
    if (step === "plan") return this.#read.faults;
    const fault = step === "firmware" ? this.#firmwareFault() : step === "devices" ? this.#deviceFault() : null;
    return fault === null ? [] : [{ ...fault, name: words.steps[step] }];
  }

  /** Choose firmware from a list, which knows all of it: who goes on at once does not wait until it is read again. */
  choose(firmware: Schemas["Firmware"]): void {
    const chosen = withFirmware(this.#page.query, firmware, this.firmware);
    this.record.value = firmware;
    this.#page.replaceQuery(withStep(chosen, "firmware"));
  }

  /** Read what is known of the firmware that is chosen. */
  loadFirmware(): void {
    const id = this.choice.firmwareId;
    this.record.isMissing = false;
    if (id === null || this.record.value?.id === id) {
      this.record.problem = null;
      return this.record.stop();
    }
    const path = { firmware_id: id };
    void this.record.load(async (signal) =>
      requireBody(await api.GET("/api/v1/firmware/{firmware_id}", { params: { path }, signal })),
    );
  }

  /** Ask the service what the job would do. What another one would do is no answer. */
  tryOut(): void {
    this.trial.value = null;
    this.trial.problem = null;
    const order = this.whole();
    void this.trial.load((signal) => tryOut(order, signal));
  }

  /** All of it, as the service is asked for it. */
  whole(): NewJob {
    return { ...this.order, firmwareId: this.choice.firmwareId ?? "", targets: targetsOf(this.targets), dryRun: false };
  }

  stop(): void {
    for (const each of [this.counts, this.record, this.trial]) each.stop();
  }

  #firmwareFault(): Pick<Fault, "id" | "text"> | null {
    const fault = (text: string): Pick<Fault, "id" | "text"> => ({ id: "firmware-find", text });
    if (this.choice.firmwareId === null) return fault(words.firmware.choose);
    if (this.record.isMissing) return fault(words.firmware.missing);
    if (this.firmware === null) return fault(words.firmware.reading);
    return this.firmware.state === "released" ? null : fault(words.firmware.notReleased);
  }

  #deviceFault(): Pick<Fault, "id" | "text"> | null {
    if (this.targets.kind === "none") return { id: "devices-all", text: words.devices.choose };
    if (this.targets.kind === "lost") return { id: "step-title", text: words.devices.selectionLost };
    return this.counts.value?.total === 0 ? { id: "step-title", text: words.devices.noMatch } : null;
  }
}

function suggestion({ modelNumber, version }: Schemas["Firmware"]): string {
  const product = isKnown(modelNumber) ? catalogue.getProductName(modelNumber) : null;
  return words.plan.suggested(product ?? versionText(modelNumber), version);
}
