/** Session of the signed-in user. The token is kept in the session storage of the tab and nowhere else; a new tab gets
 * it from the other tabs.
 *
 * When a session expires, the page is preserved for the same user: `me` is unchanged until another user signs in. A
 * sign-out leaves nothing behind.
 */
import { tick } from "svelte";

import type { components } from "../../generated/schema";
import { clearNamedItems, tabStorage } from "../storage";
import { en } from "../text/en";
import { type SignOut, shareToken, broadcastToTabs, requestSharedToken } from "./shared-session";
import { tokenLogin, tokenOwner } from "./token";

export type Role = components["schemas"]["Role"];
export type Me = components["schemas"]["Me"];

const TOKEN_KEY = "meshfleet.token";
const OWNER_KEY = "meshfleet.owner";
/** Milliseconds until a new tab shows the sign-in page: long enough for another tab to answer, short for a single
 * tab. */
const RESTORE_TIMEOUT = 250;
const RANKS: Record<Role, number> = { viewer: 0, operator: 1, admin: 2 };

class Session {
  token = $state<string | null>(tabStorage.read(TOKEN_KEY));
  /** The user; after an expiry, the user for whom the page is preserved. */
  me = $state<Me | null>(null);
  /** Why the user has to sign in again. */
  notice = $state<string | null>(null);
  /** Number of refused actions that the console had offered: the role must have changed. */
  roleRechecks = $state(0);
  /** Whether another tab may still provide a token. */
  isRestoring = $state(false);
  /** User name for whom the page is preserved after the session expired; null otherwise. */
  readonly preservedFor = $derived(this.token === null && this.me !== null ? this.me.username : null);

  /** Last user of the tab. */
  #owner = tabStorage.read(OWNER_KEY);

  /** Share the session with other tabs. A late token signs this tab in, unless it is signed in by then. */
  async start(): Promise<void> {
    shareToken(
      () => this.token,
      (left) => this.#handleSignOut(left),
    );
    if (this.token !== null) return;
    this.isRestoring = true;
    setTimeout(() => (this.isRestoring = false), RESTORE_TIMEOUT);
    const token = await requestSharedToken();
    if (token !== null && tabStorage.read(TOKEN_KEY) === null) this.storeToken(token);
    this.isRestoring = false;
  }

  storeToken(token: string): void {
    const owner = tokenOwner(token);
    if (owner !== this.#owner) clearNamedItems();
    this.#owner = owner;
    tabStorage.write(OWNER_KEY, owner);
    this.token = token;
    tabStorage.write(TOKEN_KEY, token);
  }

  /** Sign in. The same user finds the preserved page, another user a fresh one. */
  async signIn(token: string): Promise<void> {
    if (this.preservedFor !== null && this.preservedFor !== tokenOwner(token)) {
      this.end();
      await tick();
    }
    this.notice = null;
    this.storeToken(token);
  }

  /** Sign out in all tabs of this browser. */
  signOut(): void {
    if (this.token !== null) broadcastToTabs({ owner: tokenOwner(this.token), login: tokenLogin(this.token) });
    this.end();
  }

  end(notice: string | null = null): void {
    this.#clearToken(notice);
    this.me = null;
    clearNamedItems();
  }

  /** End the session after the token became invalid, and preserve the page. */
  expire(): void {
    this.#clearToken(en.signIn.sessionEnded);
  }

  /** Request the role again, since it must have changed. */
  recheckRole(): void {
    this.roleRechecks += 1;
  }

  /** Handle a sign-out in another tab: of the same login, or of the user for whom this page is preserved. */
  #handleSignOut({ owner, login }: SignOut): void {
    const isOurs = this.token === null ? this.preservedFor === owner : tokenLogin(this.token) === login;
    if (isOurs) this.end(en.signIn.sessionEnded);
  }

  #clearToken(notice: string | null): void {
    this.token = null;
    this.notice = notice;
    tabStorage.write(TOKEN_KEY, null);
  }

  /** Return whether the user has a role, or a higher one. Actions that need a higher role are not offered. */
  hasRole(role: Role): boolean {
    return this.me !== null && RANKS[this.me.role] >= RANKS[role];
  }
}

export const session = new Session();
