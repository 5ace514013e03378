/** Search of the console: pages at once, other results when the service responds. Only the newest query counts. */
import { describeError } from "../../api/client";
import { en } from "../../text/en";
import {
  type SearchResult,
  searchDevices,
  searchFirmware,
  searchGateways,
  searchJobs,
  searchLabels,
  searchPages,
  readFirmware,
  readGateways,
  readJobs,
  readLabels,
} from "./sources";
import { recent } from "./recent-pages.svelte";

export interface ResultGroup {
  readonly name: string;
  readonly choices: readonly SearchResult[];
}

const DEBOUNCE = 150;
const AT_MOST = 6;

export class ConsoleSearch {
  groups = $state.raw<readonly ResultGroup[]>(idle());
  /** Whether more results may arrive. */
  isSearching = $state(false);
  /** Error of a source; results of the other sources are shown. */
  problem = $state<string | null>(null);

  // Each opened dialog has its own search, which loads these lists once.
  #gateways = once(readGateways);
  #labels = once(readLabels);
  #jobs = once(readJobs);
  #firmware = once(readFirmware);
  #asking: AbortController | null = null;
  #timer: ReturnType<typeof setTimeout> | undefined;

  start(typed: string): void {
    this.stop();
    const text = typed.trim();
    this.problem = null;
    this.isSearching = text !== "";
    if (text === "") {
      this.groups = idle();
      return;
    }
    this.groups = grouped(text, []);
    const asking = new AbortController();
    this.#asking = asking;
    this.#timer = setTimeout(() => void this.#search(text, asking), DEBOUNCE);
  }

  stop(): void {
    clearTimeout(this.#timer);
    this.#asking?.abort();
    this.#asking = null;
  }

  async #search(text: string, asking: AbortController): Promise<void> {
    const { signal } = asking;
    const answers = await Promise.allSettled([
      searchDevices(text, signal),
      this.#gateways().then((all) => searchGateways(text, all)),
      this.#labels().then((all) => searchLabels(text, all)),
      this.#jobs().then((all) => searchJobs(text, all)),
      this.#firmware().then((all) => searchFirmware(text, all)),
    ]);
    if (this.#asking !== asking) return;
    const found = answers.map((answer) => (answer.status === "fulfilled" ? answer.value : []));
    const failed = answers.find((answer) => answer.status === "rejected");
    this.groups = grouped(text, found);
    this.problem = failed ? describeError(failed.reason) : null;
    this.isSearching = false;
  }
}

/** Return a function that calls `read` once and repeats it only after a failure. */
function once<Answer>(read: () => Promise<Answer>): () => Promise<Answer> {
  let answer: Promise<Answer> | null = null;
  return () => {
    answer ??= read().catch((error: unknown) => {
      answer = null;
      throw error;
    });
    return answer;
  };
}

function idle(): readonly ResultGroup[] {
  const { groups } = en.shell.search;
  return named([
    [groups.recent, recent.choices],
    [groups.pages, searchPages("")],
  ]);
}

function grouped(text: string, found: readonly (readonly SearchResult[])[]): readonly ResultGroup[] {
  const [devices = [], gateways = [], labels = [], jobs = [], firmware = []] = found;
  const { groups } = en.shell.search;
  return named([
    [groups.devices, devices],
    [groups.gateways, gateways.slice(0, AT_MOST)],
    [groups.labels, labels.slice(0, AT_MOST)],
    [groups.jobs, jobs.slice(0, AT_MOST)],
    [groups.firmware, firmware.slice(0, AT_MOST)],
    [groups.pages, searchPages(text)],
  ]);
}

function named(groups: readonly [string, readonly SearchResult[]][]): readonly ResultGroup[] {
  return groups.filter(([, choices]) => choices.length > 0).map(([name, choices]) => ({ name, choices }));
}
