/** Who is signed in. The token is kept in the tab's session storage, and nowhere else; a new tab has it from the others.
 *
 * A session may end by itself while somebody types. Then the page is kept for them, and for nobody else: `me` stays who
 * it was. Whoever signs out leaves nothing behind. */
import { tick } from "svelte";

import type { components } from "../../generated/schema";
import { clearNamedItems, tabStorage } from "../storage";
import { en } from "../text/en";
import { type SignOut, shareToken, broadcastToTabs, requestSharedToken } from "./shared-session";
import { tokenLogin, tokenOwner } from "./token";

export type Role = components["schemas"]["Role"];
export type Me = components["schemas"]["Me"];

const KEY = "meshfleet.token";
const OWNER = "meshfleet.owner";
/** Milliseconds until a new tab offers to sign in: long for a tab that answers, short for who has no other. */
const PATIENCE = 250;
const RANKS: Record<Role, number> = { viewer: 0, operator: 1, admin: 2 };

class Session {
  token = $state<string | null>(tabStorage.read(KEY));
  /** Who that is; who it was, while the page is kept for them. */
  me = $state<Me | null>(null);
  /** Why somebody has to sign in again. */
  notice = $state<string | null>(null);
  /** How often something was refused that was offered: what one may do must have changed. */
  roleRechecks = $state(0);
  /** Whether another tab may still say who is signed in. */
  isRestoring = $state(false);
  /** For whom the page is kept: their session has ended by itself. */
  readonly preservedFor = $derived(this.token === null && this.me !== null ? this.me.username : null);

  /** Whose the tab was last. */
  #owner = tabStorage.read(OWNER);

  /** Join the other tabs of this browser. One that answers late signs this one in, unless somebody has done so. */
  async start(): Promise<void> {
    shareToken(
      () => this.token,
      (left) => this.#hear(left),
    );
    if (this.token !== null) return;
    this.isRestoring = true;
    setTimeout(() => (this.isRestoring = false), PATIENCE);
    const token = await requestSharedToken();
    if (token !== null && tabStorage.read(KEY) === null) this.storeToken(token);
    this.isRestoring = false;
  }

  storeToken(token: string): void {
    const owner = tokenOwner(token);
    if (owner !== this.#owner) clearNamedItems();
    this.#owner = owner;
    tabStorage.write(OWNER, owner);
    this.token = token;
    tabStorage.write(KEY, token);
  }

  /** Somebody has signed in: who comes back finds what was kept, and another a page of their own. */
  async signIn(token: string): Promise<void> {
    if (this.preservedFor !== null && this.preservedFor !== tokenOwner(token)) {
      this.end();
      await tick();
    }
    this.notice = null;
    this.storeToken(token);
  }

  /** Whoever is signed in wants to be so no more, in no tab of this browser. */
  signOut(): void {
    if (this.token !== null) broadcastToTabs({ owner: tokenOwner(this.token), login: tokenLogin(this.token) });
    this.end();
  }

  end(notice: string | null = null): void {
    this.#drop(notice);
    this.me = null;
    clearNamedItems();
  }

  /** The token does not hold any more. */
  expire(): void {
    this.#drop(en.signIn.sessionEnded);
  }

  /** Somebody may do less, or more, than we think: ask again. */
  recheckRole(): void {
    this.roleRechecks += 1;
  }

  /** Somebody has signed out in another tab: of the same login, or who would come back here. */
  #hear({ owner, login }: SignOut): void {
    const isOurs = this.token === null ? this.preservedFor === owner : tokenLogin(this.token) === login;
    if (isOurs) this.end(en.signIn.sessionEnded);
  }

  #drop(notice: string | null): void {
    this.token = null;
    this.notice = notice;
    tabStorage.write(KEY, null);
  }

  /** Whether one may do what needs a role: what one may not do is not offered. */
  may(role: Role): boolean {
    return this.me !== null && RANKS[this.me.role] >= RANKS[role];
  }
}

export const session = new Session();
