/** Renewal of the session: a new token after half the lifetime of the old one. A login can be renewed for 12 hours; the
 * user is warned before the last token expires and can sign in again without losing input. */
import { Problem, api, requireBody } from "../api/client";
import { session } from "../api/session.svelte";
import { tokenLifetime } from "../api/token";
import { clock } from "../clock.svelte";
import { live } from "../live/socket.svelte";

/** Milliseconds between two checks. There is no long timer, since clocks are set and machines sleep. */
const CHECK_INTERVAL = 10_000;

class SessionRenewal {
  /** Time at which the session ends, in milliseconds since 1970; null while it can be renewed. */
  endsAt = $state<number | null>(null);

  #timer: ReturnType<typeof setTimeout> | undefined;

  /** Renew a token in time, until the next call. */
  start(token: string): void {
    this.stop();
    void this.#check(token);
  }

  stop(): void {
    clearTimeout(this.#timer);
    this.endsAt = null;
  }

  async #check(token: string): Promise<void> {
    const { from, to } = tokenLifetime(token);
    if (this.endsAt === null && clock.read() >= (from + to) / 2) await this.#renew(token, to);
    // The user may have signed out or in again meanwhile.
    if (session.token !== token) return;
    if (this.endsAt !== null && clock.read() >= this.endsAt) return session.expire();
    this.#timer = setTimeout(() => void this.#check(token), CHECK_INTERVAL);
  }

  async #renew(token: string, endsAt: number): Promise<void> {
    try {
      const { authToken } = requireBody(await api.POST("/api/v1/auth/refresh"));
      if (session.token !== token) return;
      session.storeToken(authToken);
      live.renewToken(authToken);
    } catch (error) {
      // An unreachable service may be back in time; a refusal is final.
      if (session.token === token && error instanceof Problem && error.status === 401) this.endsAt = endsAt;
    }
  }
}

export const sessionRenewal = new SessionRenewal();
