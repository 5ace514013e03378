/** How the service is, for the whole shell: asked now and then, more often while it is away, and at once when the live
 * connection breaks or is there again, or when a page could not reach it.
 *
 * What is said here goes together with the state of the live connection. While that one holds, the service is not away:
 * an answer that does not come is a reason to ask over the live connection, which proves itself or breaks. Until then
 * the connection is being checked. It is not dropped for that: a service that has too much to do answers late, and
 * would have even more to do if every tab came anew. */
import { untrack } from "svelte";

import { onUnreachable } from "../api/unreachable";
import { runRetries } from "../api/reconnect-retries";
import { clock } from "../clock.svelte";
import { isObject } from "../json";
import { toSentence } from "../text/format";
import { live } from "./socket.svelte";

/** What an answer says; `silent`: there is none, though the live connection holds. */
type Said = "unknown" | "ready" | "busy" | "silent" | "strange" | "away";
export type Health = Said | "checking";

interface Answer {
  readonly said: Said;
  /** Why it is not ready, as sentences. */
  readonly reasons: readonly string[];
}

const EVERY = 20_000;
const WHILE_AWAY = 5000;
const LONGEST = 8000;
/** The service says 503 while its database or its broker keep it from its work; the others are said in its place. */
const SAID: Partial<Record<number, Said>> = { 502: "away", 503: "busy", 504: "away" };

class Service {
  /** Why it is not ready, as sentences; empty: it does not say. */
  reasons = $state.raw<readonly string[]>([]);

  #said = $state<Said>("unknown");
  /** Whether a page could not reach it, and nobody knows yet what that means. */
  #isDoubted = $state(false);
  /** Whether it is not known yet if the live connection still is one. */
  readonly isChecking = $derived(live.state === "live" && (this.#isDoubted || this.#said === "away"));
  readonly health = $derived<Health>(this.isChecking ? "checking" : this.#said);

  /** Watch it, until the returned function is called. */
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
        // Who looked later knows better.
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
      // Where one request fails again and again, and others do not, the service is not asked with each of them.
      clearTimeout(timer);
      timer = setTimeout(() => void look(), Math.max(0, lookedAt + WHILE_AWAY - performance.now()));
    };
    void look();
    const forget = onUnreachable(doubt);
    const unfollow = $effect.root(() => {
      $effect(() => {
        if (live.state !== "reconnecting" && live.state !== "live") return;
        untrack(() => {
          // What it said while there was a connection does not hold for a moment when there is none.
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

  /** The service has answered over the live connection. */
  #prove(): void {
    if (this.#said === "away" && live.state === "live") this.#said = "silent";
  }
}

async function ask(): Promise<Answer> {
  const answer = await answerOf();
  // Who tells events meanwhile is not away.
  return answer.said === "away" && live.hasReceivedWithin(LONGEST) ? { ...answer, said: "silent" } : answer;
}

async function answerOf(): Promise<Answer> {
  try {
    const answer = await clock.fetch("/readyz", { signal: AbortSignal.timeout(LONGEST), cache: "no-store" });
    const text = await answer.text(); // What nobody reads is under way until its time is over.
    if (answer.ok) return { said: "ready", reasons: [] };
    return { said: SAID[answer.status] ?? "strange", reasons: answer.status === 503 ? reasonsIn(text) : [] };
  } catch {
    return { said: "away", reasons: [] };
  }
}

/** The sentences of `reasons`, or the one of a problem. */
function reasonsIn(text: string): readonly string[] {
  let body: unknown;
  try {
    body = JSON.parse(text);
  } catch {
    return []; // A proxy may answer in the service's place.
  }
  if (!isObject(body)) return [];
  const said = Array.isArray(body["reasons"]) ? body["reasons"].map((reason: unknown) => isObject(reason) && reason["text"]) : [body["detail"]];
  return said.filter((each) => typeof each === "string").map(toSentence);
}

export const service = new Service();
