/** Health of the service, for the whole shell: checked regularly, more often while it is not ready, and at once when
 * the live connection breaks or returns or a request of a page got no response.
 *
 * The health is consistent with the state of the live connection. While that is open, the service is not shown as
 * unreachable: a missing response triggers a ping over the live connection, which confirms or breaks it; until then
 * the connection is being checked. It is not dropped, since a busy service answers late and would suffer more from
 * reconnecting tabs.
 */
import { untrack } from "svelte";

import { onUnreachable } from "../api/unreachable";
import { runRetries } from "../api/reconnect-retries";
import { clock } from "../clock.svelte";
import { isObject } from "../json";
import { toSentence } from "../text/format";
import { live } from "./socket.svelte";

/** Result of a health check; `silent`: no response although the live connection is open. */
type CheckResult = "unknown" | "ready" | "busy" | "silent" | "strange" | "away";
export type Health = CheckResult | "checking";

interface HealthReport {
  readonly result: CheckResult;
  /** Reasons why the service is not ready, as sentences. */
  readonly reasons: readonly string[];
}

const CHECK_INTERVAL = 20_000;
const RETRY_INTERVAL = 5000;
const TIMEOUT = 8000;
/** The service returns 503 while its database or broker is unavailable; a proxy returns the others in its place. */
const RESULT_BY_STATUS: Partial<Record<number, CheckResult>> = { 502: "away", 503: "busy", 504: "away" };

class Service {
  /** Reasons why the service is not ready, as sentences; empty if it gives none. */
  reasons = $state.raw<readonly string[]>([]);

  #result = $state<CheckResult>("unknown");
  /** Whether a request of a page got no response and no check has finished since. */
  #isUnconfirmed = $state(false);
  /** Whether the live connection is open but not confirmed. */
  readonly isChecking = $derived(live.state === "live" && (this.#isUnconfirmed || this.#result === "away"));
  readonly health = $derived<Health>(this.isChecking ? "checking" : this.#result);

  /** Check the health until the returned function is called. */
  watch(): () => void {
    let timer: ReturnType<typeof setTimeout> | undefined;
    let checks = 0;
    let checkedAt = -Infinity;
    const check = async (): Promise<void> => {
      clearTimeout(timer);
      const number = ++checks;
      if (!document.hidden) {
        checkedAt = performance.now();
        const answer = await checkHealth();
        // A newer check has replaced this one.
        if (number !== checks) return;
        this.#applyResult(answer);
      }
      clearTimeout(timer);
      timer = setTimeout(() => void check(), this.#result === "ready" ? CHECK_INTERVAL : RETRY_INTERVAL);
    };
    const handleUnreachable = (): void => {
      if (this.#isUnconfirmed) return;
      this.#isUnconfirmed = true;
      live.ping();
      // A request that fails repeatedly while others succeed must not trigger a check each time.
      clearTimeout(timer);
      timer = setTimeout(() => void check(), Math.max(0, checkedAt + RETRY_INTERVAL - performance.now()));
    };
    void check();
    const unsubscribe = onUnreachable(handleUnreachable);
    const stopEffects = $effect.root(() => {
      $effect(() => {
        if (live.state !== "reconnecting" && live.state !== "live") return;
        untrack(() => {
          // A result from before the interruption is no longer valid.
          if (live.state === "reconnecting") this.#result = "unknown";
          void check();
        });
      });
      $effect(() => {
        if (live.pongs > 0) untrack(() => this.#handlePong());
      });
    });
    return () => {
      unsubscribe();
      stopEffects();
      checks += 1;
      clearTimeout(timer);
      this.#isUnconfirmed = false;
    };
  }

  #applyResult({ result: said, reasons }: HealthReport): void {
    const previous = this.#result;
    this.#result = said;
    this.reasons = reasons;
    this.#isUnconfirmed = false;
    if (said === "away") live.ping();
    if (said === "ready" && previous !== "ready" && previous !== "unknown") runRetries();
  }

  /** Handle a pong on the live connection. */
  #handlePong(): void {
    if (this.#result === "away" && live.state === "live") this.#result = "silent";
  }
}

async function checkHealth(): Promise<HealthReport> {
  const report = await requestHealth();
  // A service that delivers live events is reachable.
  return report.result === "away" && live.hasReceivedWithin(TIMEOUT) ? { ...report, result: "silent" } : report;
}

async function requestHealth(): Promise<HealthReport> {
  try {
    const response = await clock.fetch("/readyz", { signal: AbortSignal.timeout(TIMEOUT), cache: "no-store" });
    const text = await response.text(); // an unread body would stay in progress until the timeout
    if (response.ok) return { result: "ready", reasons: [] };
    return { result: RESULT_BY_STATUS[response.status] ?? "strange", reasons: response.status === 503 ? parseReasons(text) : [] };
  } catch {
    return { result: "away", reasons: [] };
  }
}

/** Return the sentences of `reasons`, or the detail of a problem. */
function parseReasons(text: string): readonly string[] {
  let body: unknown;
  try {
    body = JSON.parse(text);
  } catch {
    return []; // a proxy may respond in place of the service
  }
  if (!isObject(body)) return [];
  const texts = Array.isArray(body["reasons"]) ? body["reasons"].map((reason: unknown) => isObject(reason) && reason["text"]) : [body["detail"]];
  return texts.filter((each) => typeof each === "string").map(toSentence);
}

export const service = new Service();
