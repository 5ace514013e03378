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
type Said = "unknown" | "ready" | "busy" | "silent" | "strange" | "away";
export type Health = Said | "checking";

interface Answer {
  readonly said: Said;
  /** Reasons why the service is not ready, as sentences. */
  readonly reasons: readonly string[];
}

const EVERY = 20_000;
const WHILE_AWAY = 5000;
const LONGEST = 8000;
/** The service returns 503 while its database or broker is unavailable; a proxy returns the others in its place. */
const SAID: Partial<Record<number, Said>> = { 502: "away", 503: "busy", 504: "away" };

class Service {
  /** Reasons why the service is not ready, as sentences; empty if it gives none. */
  reasons = $state.raw<readonly string[]>([]);

  #said = $state<Said>("unknown");
  /** Whether a request of a page got no response and no check has finished since. */
  #isDoubted = $state(false);
  /** Whether the live connection is open but not confirmed. */
  readonly isChecking = $derived(live.state === "live" && (this.#isDoubted || this.#said === "away"));
  readonly health = $derived<Health>(this.isChecking ? "checking" : this.#said);

  /** Check the health until the returned function is called. */
  watch(): () => void {
    let timer: ReturnType<typeof setTimeout> | undefined;
    let looks = 0;
    let lookedAt = -Infinity;
    const look = async (): Promise<void> => {
      clearTimeout(timer);
      const mine = ++looks;
      if (!document.hidden) {
        lookedAt = performance.now();
        const answer = await ask();
        // A newer check has replaced this one.
        if (mine !== looks) return;
        this.#learn(answer);
      }
      clearTimeout(timer);
      timer = setTimeout(() => void look(), this.#said === "ready" ? EVERY : WHILE_AWAY);
    };
    const doubt = (): void => {
      if (this.#isDoubted) return;
      this.#isDoubted = true;
      live.ping();
      // A request that fails repeatedly while others succeed must not trigger a check each time.
      clearTimeout(timer);
      timer = setTimeout(() => void look(), Math.max(0, lookedAt + WHILE_AWAY - performance.now()));
    };
    void look();
    const forget = onUnreachable(doubt);
    const unfollow = $effect.root(() => {
      $effect(() => {
        if (live.state !== "reconnecting" && live.state !== "live") return;
        untrack(() => {
          // A result from before the interruption is no longer valid.
          if (live.state === "reconnecting") this.#said = "unknown";
          void look();
        });
      });
      $effect(() => {
        if (live.pongs > 0) untrack(() => this.#prove());
      });
    });
    return () => {
      forget();
      unfollow();
      looks += 1;
      clearTimeout(timer);
      this.#isDoubted = false;
    };
  }

  #learn({ said, reasons }: Answer): void {
    const before = this.#said;
    this.#said = said;
    this.reasons = reasons;
    this.#isDoubted = false;
    if (said === "away") live.ping();
    if (said === "ready" && before !== "ready" && before !== "unknown") runRetries();
  }

  /** Handle a pong on the live connection. */
  #prove(): void {
    if (this.#said === "away" && live.state === "live") this.#said = "silent";
  }
}

async function ask(): Promise<Answer> {
  const answer = await answerOf();
  // A service that delivers live events is reachable.
  return answer.said === "away" && live.hasReceivedWithin(LONGEST) ? { ...answer, said: "silent" } : answer;
}

async function answerOf(): Promise<Answer> {
  try {
    const answer = await clock.fetch("/readyz", { signal: AbortSignal.timeout(LONGEST), cache: "no-store" });
    const text = await answer.text(); // an unread body would stay in progress until the timeout
    if (answer.ok) return { said: "ready", reasons: [] };
    return { said: SAID[answer.status] ?? "strange", reasons: answer.status === 503 ? reasonsIn(text) : [] };
  } catch {
    return { said: "away", reasons: [] };
  }
}

/** Return the sentences of `reasons`, or the detail of a problem. */
function reasonsIn(text: string): readonly string[] {
  let body: unknown;
  try {
    body = JSON.parse(text);
  } catch {
    return []; // a proxy may respond in place of the service
  }
  if (!isObject(body)) return [];
  const said = Array.isArray(body["reasons"]) ? body["reasons"].map((reason: unknown) => isObject(reason) && reason["text"]) : [body["detail"]];
  return said.filter((each) => typeof each === "string").map(toSentence);
}

export const service = new Service();
