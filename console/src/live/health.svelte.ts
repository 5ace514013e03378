/** How the service is: asked now and then, more often while it is away, and at once when the live connection breaks or
 * is there again. An answer that does not come is a reason to ask whether the live connection still is one, and none to
 * drop it: a service that has too much to do answers late, and would have even more to do if every tab came anew. */
import { untrack } from "svelte";

import { isBack } from "../api/returning";
import { clock } from "../clock.svelte";
import { live } from "./socket.svelte";

export type Health = "unknown" | "ready" | "busy" | "strange" | "away";

const EVERY = 20_000;
const WHILE_AWAY = 5000;
const LONGEST = 8000;
/** The service says 503 while its database or its broker keep it from its work; the others are said in its place. */
const SAID: Partial<Record<number, Health>> = { 502: "away", 503: "busy", 504: "away" };

class Service {
  health = $state<Health>("unknown");

  /** Watch it, until the returned function is called. */
  watch(): () => void {
    let timer: ReturnType<typeof setTimeout> | undefined;
    let looks = 0;
    const look = async (): Promise<void> => {
      clearTimeout(timer);
      const mine = ++looks;
      if (!document.hidden) {
        const health = await ask();
        // Who looked later knows better.
        if (mine !== looks) return;
        this.#learn(health);
      }
      timer = setTimeout(() => void look(), this.health === "ready" ? EVERY : WHILE_AWAY);
    };
    void look();
    const unfollow = $effect.root(() => {
      $effect(() => {
        if (live.state === "reconnecting" || live.state === "live") untrack(() => void look());
      });
    });
    return () => {
      unfollow();
      looks += 1;
      clearTimeout(timer);
    };
  }

  #learn(health: Health): void {
    const before = this.health;
    this.health = health;
    if (health === "away") live.prove();
    if (health === "ready" && before !== "ready" && before !== "unknown") isBack();
  }
}

async function ask(): Promise<Health> {
  try {
    const answer = await clock.fetch("/readyz", { signal: AbortSignal.timeout(LONGEST), cache: "no-store" });
    await answer.text(); // What nobody reads is under way until its time is over.
    return answer.ok ? "ready" : (SAID[answer.status] ?? "strange");
  } catch (error) {
    // Who tells events meanwhile is not away.
    const isLate = error instanceof DOMException && error.name === "TimeoutError";
    return isLate && live.isHeard(LONGEST) ? "busy" : "away";
  }
}

export const service = new Service();
