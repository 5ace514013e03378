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
  searchSites,
  readFirmware,
  readGateways,
  readJobs,
  readLabels,
  readSites,
} from "./sources";
import { recentResults } from "./recent-pages.svelte";

export interface ResultGroup {
  readonly name: string;
  readonly results: readonly SearchResult[];
}

const DEBOUNCE = 150;
const MAX_RESULTS = 6;

export class ConsoleSearch {
  groups = $state.raw<readonly ResultGroup[]>(buildIdleGroups());
  /** Whether more results may arrive. */
  isSearching = $state(false);
  /** Error of a source; results of the other sources are shown. */
  problem = $state<string | null>(null);

  // Each opened dialog has its own search, which loads these lists once.
  #gateways = createLazyReader(readGateways);
  #labels = createLazyReader(readLabels);
  #jobs = createLazyReader(readJobs);
  #firmware = createLazyReader(readFirmware);
  #sites = createLazyReader(readSites);
  #pending: AbortController | null = null;
  #timer: ReturnType<typeof setTimeout> | undefined;

  start(typed: string): void {
    this.stop();
    const text = typed.trim();
    this.problem = null;
    this.isSearching = text !== "";
    if (text === "") {
      this.groups = buildIdleGroups();
      return;
    }
    this.groups = groupResults(text, []);
    const pending = new AbortController();
    this.#pending = pending;
    this.#timer = setTimeout(() => void this.#search(text, pending), DEBOUNCE);
  }

  stop(): void {
    clearTimeout(this.#timer);
    this.#pending?.abort();
    this.#pending = null;
  }

  async #search(text: string, asking: AbortController): Promise<void> {
    const { signal } = asking;
    const answers = await Promise.allSettled([
      searchDevices(text, signal),
      this.#gateways().then((all) => searchGateways(text, all)),
      this.#labels().then((all) => searchLabels(text, all)),
      this.#jobs().then((all) => searchJobs(text, all)),
      this.#firmware().then((all) => searchFirmware(text, all)),
      this.#sites().then((all) => searchSites(text, all)),
    ]);
    if (this.#pending !== asking) return;
    const found = answers.map((answer) => (answer.status === "fulfilled" ? answer.value : []));
    const failed = answers.find((answer) => answer.status === "rejected");
    this.groups = groupResults(text, found);
    this.problem = failed ? describeError(failed.reason) : null;
    this.isSearching = false;
  }
}

/** Return a function that calls `read` once and repeats it only after a failure. */
function createLazyReader<Answer>(read: () => Promise<Answer>): () => Promise<Answer> {
  let answer: Promise<Answer> | null = null;
  return () => {
    answer ??= read().catch((error: unknown) => {
      answer = null;
      throw error;
    });
    return answer;
  };
}

function buildIdleGroups(): readonly ResultGroup[] {
  const { groups } = en.shell.search;
  return removeEmpty([
    [groups.recent, recentResults.results],
    [groups.pages, searchPages("")],
  ]);
}

function groupResults(text: string, found: readonly (readonly SearchResult[])[]): readonly ResultGroup[] {
  const [devices = [], gateways = [], labels = [], jobs = [], firmware = [], sites = []] = found;
  const { groups } = en.shell.search;
  return removeEmpty([
    [groups.devices, devices],
    [groups.gateways, gateways.slice(0, MAX_RESULTS)],
    [groups.sites, sites.slice(0, MAX_RESULTS)],
    [groups.labels, labels.slice(0, MAX_RESULTS)],
    [groups.jobs, jobs.slice(0, MAX_RESULTS)],
    [groups.firmware, firmware.slice(0, MAX_RESULTS)],
    [groups.pages, searchPages(text)],
  ]);
}

function removeEmpty(groups: readonly [string, readonly SearchResult[]][]): readonly ResultGroup[] {
  return groups.filter(([, results]) => results.length > 0).map(([name, results]) => ({ name, results }));
}
