/** Keeps who is at work signed in: a new token in the middle of the old one's life. A login can be renewed for 12 hours;
 * who is told before the last token ends can sign in again without losing what is typed. */
import { Problem, api, requireBody } from "../api/client";
import { session } from "../api/session.svelte";
import { tokenLifetime } from "../api/token";
import { clock } from "../clock.svelte";
import { live } from "../live/socket.svelte";

/** Looked at so often, and not planned for long: clocks are set, and machines sleep. */
const EVERY = 10_000;

class Renewal {
  /** When the session ends, once it is known that it cannot be renewed; in milliseconds since 1970. */
  endsAt = $state<number | null>(null);

  #timer: ReturnType<typeof setTimeout> | undefined;

  /** Look after a token, until the next one is there. */
  begin(token: string): void {
    this.end();
    void this.#look(token);
  }

  end(): void {
    clearTimeout(this.#timer);
    this.endsAt = null;
  }

  async #look(token: string): Promise<void> {
    const { from, to } = tokenLifetime(token);
    if (this.endsAt === null && clock.read() >= (from + to) / 2) await this.#renew(token, to);
    // Somebody may have signed out, or in again, while this was asked.
    if (session.token !== token) return;
    if (this.endsAt !== null && clock.read() >= this.endsAt) return session.expire();
    this.#timer = setTimeout(() => void this.#look(token), EVERY);
  }

  async #renew(token: string, endsAt: number): Promise<void> {
    try {
      const { authToken } = requireBody(await api.POST("/api/v1/auth/refresh"));
      if (session.token !== token) return;
      session.storeToken(authToken);
      live.renewToken(authToken);
    } catch (error) {
      // A service that is away may be back in time; one that says no means it.
      if (session.token === token && error instanceof Problem && error.status === 401) this.endsAt = endsAt;
    }
  }
}

export const renewal = new Renewal();
