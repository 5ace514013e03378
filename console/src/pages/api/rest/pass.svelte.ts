/** With whose token requests are tried. It lives as long as the page is shown, and is written down nowhere: neither in the
 * browser's storage nor in an address. */
import { session } from "../../../api/session.svelte";

export type PassKind = "none" | "session" | "given" | "login";

export class Pass {
  kind = $state<PassKind>("none");
  #own = $state<string | null>(null);

  /** The token as it is now: that of the session is renewed from time to time. */
  get token(): string | null {
    return this.kind === "session" ? session.token : this.#own;
  }

  useSession(): void {
    this.kind = "session";
    this.#own = null;
  }

  /** Use another token: one that somebody gave, or that the login operation answered. */
  use(token: string, kind: "given" | "login"): void {
    this.kind = kind;
    this.#own = token;
  }

  forget(): void {
    this.kind = "none";
    this.#own = null;
  }
}
