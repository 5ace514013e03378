/** Draft of a new job: the parameters of the page address, the plan that was typed, and what is still missing. */
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
import { type DryRun, type NewJob, runDryRun } from "./job-creation.svelte";
import { STEPS, type Step, buildTargets, parseParameters, withFirmware, withStep } from "./parameters";
import type { Fault } from "./plan/form-parser";
import { buildJobSettings } from "./plan/job-settings";
import { Plan } from "./plan/plan.svelte";

const words = en.newJob;
const PLAN_INDEX = STEPS.indexOf("plan");

/** Query parameter with the name under which the plan is stored in this tab. */
const PLAN_PARAMETER = "Plan";
const storedPlans = new NamedItem<string>("meshfleet.plan");

export class JobDraft {
  readonly plan = new Plan();
  /** Whether the address names a plan that is no longer stored: the default plan replaces it, for the user to check. */
  isPlanLost = $state(false);
  /** Number of target devices. */
  readonly counts = new DeviceCount();
  /** Record of the chosen firmware. */
  readonly record = new Resource<Schemas["Firmware"]>();
  /** Result of the dry run. */
  readonly dryRun = new Resource<DryRun>();

  readonly #page: PageAddress;
  #planName: string | null = null;
  readonly parameters = $derived.by(() => parseParameters(this.#page.query));
  readonly targets = $derived(this.parameters.targets);
  /** Chosen firmware; null: none is chosen, or its record is not loaded yet. */
  readonly firmware = $derived.by(() => (this.record.value?.id === this.parameters.firmwareId ? this.record.value : null));
  readonly #isLoadingFirmware = $derived(
    this.parameters.firmwareId !== null && this.firmware === null && !this.record.isMissing,
  );
  /** Name of the job if the user types none. */
  readonly suggestedName = $derived(this.firmware === null ? "" : suggestName(this.firmware));
  readonly #parsed = $derived.by(() => buildJobSettings(this.plan, this.suggestedName || words.title, clock.now));
  readonly settings = $derived(this.#parsed.settings);

  /** Number of complete steps, from the first on. */
  readonly completeSteps = $derived.by(() => {
    if (!this.#isLoadingFirmware && this.firmware?.state !== "released") return 0;
    if (this.targets.kind === "none" || this.targets.kind === "lost") return 1;
    return this.isPlanLost || this.#parsed.faults.length > 0 ? PLAN_INDEX : PLAN_INDEX + 1;
  });
  /** Index of the current step: that of the address, but at most the first incomplete one. */
  readonly stepIndex = $derived(
    Math.min(this.parameters.step === null ? PLAN_INDEX : STEPS.indexOf(this.parameters.step), this.completeSteps),
  );
  readonly step = $derived(STEPS[this.stepIndex] ?? "firmware");
  /** Whether the address refers to firmware, devices or a plan that no longer exist, or to a time that has passed: the
   * faults of the step are shown at once. */
  readonly isStale = $derived(
    (this.step === "firmware" && this.parameters.firmwareId !== null && this.completeSteps === 0) ||
      (this.step === "devices" && this.targets.kind === "lost") ||
      (this.step === "plan" && this.parameters.step === "review"),
  );

  constructor(page: PageAddress) {
    this.#page = page;
    const name = page.query.get(PLAN_PARAMETER);
    const text = name === null ? null : storedPlans.read(name);
    if (text !== null) this.plan.restore(text);
    else this.isPlanLost = name !== null;
  }

  /** Store the plan in this tab and name it in the address: a reload restores it, and where the plan is not stored the
   * address does not silently start a job with the default plan. */
  storePlan(): void {
    const newName = (): string | null => (this.plan.isChanged ? createIdempotencyKey() : null);
    const name = this.#page.query.get(PLAN_PARAMETER) ?? this.#planName ?? newName();
    if (name === null || this.isPlanLost) return;
    this.#planName = name;
    storedPlans.write(name, this.plan.serialized);
    if (!this.#page.query.has(PLAN_PARAMETER)) this.#page.replaceQuery(withParam(this.#page.query, PLAN_PARAMETER, [name]));
  }

  /** Return the faults that prevent the user from continuing after a step. */
  listFaults(step: Step): readonly Fault[] {
    if (step === "plan") return this.#parsed.faults;
    const fault = step === "firmware" ? this.#findFirmwareFault() : step === "devices" ? this.#findDeviceFault() : null;
    return fault === null ? [] : [{ ...fault, name: words.steps[step] }];
  }

  /** Choose firmware from a list. The list has the complete record, so it need not be loaded again. */
  chooseFirmware(firmware: Schemas["Firmware"]): void {
    const query = withFirmware(this.#page.query, firmware, this.firmware);
    this.record.value = firmware;
    this.#page.replaceQuery(withStep(query, "firmware"));
  }

  /** Load the record of the chosen firmware, unless it is loaded. */
  loadFirmware(): void {
    const id = this.parameters.firmwareId;
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

  /** Start a dry run of the job. The result of an earlier dry run is discarded. */
  loadDryRun(): void {
    this.dryRun.value = null;
    this.dryRun.problem = null;
    const request = this.buildRequest();
    void this.dryRun.load((signal) => runDryRun(request, signal));
  }

  /** Return the body of the request that creates the job. */
  buildRequest(): NewJob {
    const firmwareId = this.parameters.firmwareId ?? "";
    return { ...this.settings, firmwareId, targets: buildTargets(this.targets), dryRun: false };
  }

  stop(): void {
    for (const each of [this.counts, this.record, this.dryRun]) each.stop();
  }

  #findFirmwareFault(): Pick<Fault, "id" | "text"> | null {
    const fault = (text: string): Pick<Fault, "id" | "text"> => ({ id: "firmware-find", text });
    if (this.parameters.firmwareId === null) return fault(words.firmware.choose);
    if (this.record.isMissing) return fault(words.firmware.missing);
    if (this.firmware === null) return fault(words.firmware.reading);
    return this.firmware.state === "released" ? null : fault(words.firmware.notReleased);
  }

  #findDeviceFault(): Pick<Fault, "id" | "text"> | null {
    if (this.targets.kind === "none") return { id: "devices-all", text: words.devices.choose };
    if (this.targets.kind === "lost") return { id: "step-title", text: words.devices.selectionLost };
    return this.counts.value?.total === 0 ? { id: "step-title", text: words.devices.noMatch } : null;
  }
}

function suggestName({ modelNumber, version }: Schemas["Firmware"]): string {
  const product = isKnown(modelNumber) ? catalogue.getProductName(modelNumber) : null;
  return words.plan.suggested(product ?? versionText(modelNumber), version);
}
