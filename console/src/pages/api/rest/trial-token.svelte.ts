/** Token for trial requests. It exists only while the page is open and is never stored, neither in the browser nor in a
 * URL. */
import { session } from "../../../api/session.svelte";

export type TrialTokenKind = "none" | "session" | "given" | "login";

export class TrialToken {
  kind = $state<TrialTokenKind>("none");
  #token = $state<string | null>(null);

  /** Current token, or null. The token of the session is renewed from time to time. */
  get token(): string | null {
    return this.kind === "session" ? session.token : this.#token;
  }

  useSession(): void {
    this.kind = "session";
    this.#token = null;
  }

  /** Use another token: typed by the user, or returned by the login operation. */
  use(token: string, kind: "given" | "login"): void {
    this.kind = kind;
    this.#token = token;
  }

  forget(): void {
    this.kind = "none";
    this.#token = null;
  }
}
