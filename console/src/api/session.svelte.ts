/** Who is signed in. The token is kept in the tab's session storage, and nowhere else; a new tab has it from the others. */
import type { components } from "../../generated/schema";
import { inTab } from "../kept";
import { en } from "../text/en";
import { answerOthers, tokenOfOthers } from "./tabs";

export type Role = components["schemas"]["Role"];
export type Me = components["schemas"]["Me"];

const KEY = "meshfleet.token";
const OVER = { from: 0, to: 0 };
const RANKS: Record<Role, number> = { viewer: 0, operator: 1, admin: 2 };

class Session {
  token = $state<string | null>(inTab.read(KEY));
  me = $state<Me | null>(null);
  /** Why somebody has to sign in again. */
  notice = $state<string | null>(null);
  /** Whether another tab may still say who is signed in. */
  isAsking = $state(false);

  /** Join the other tabs of this browser. */
  async begin(): Promise<void> {
    answerOthers(() => this.token);
    if (this.token !== null) return;
    this.isAsking = true;
    const token = await tokenOfOthers();
    if (token !== null && inTab.read(KEY) === null) this.keep(token);
    this.isAsking = false;
  }

  keep(token: string): void {
    this.token = token;
    inTab.keep(KEY, token);
  }

  end(notice: string | null = null): void {
    this.token = null;
    this.me = null;
    this.notice = notice;
    inTab.keep(KEY, null);
  }

  /** The token does not hold any more. */
  expire(): void {
    this.end(en.signIn.ended);
  }

  /** Whether one may do what needs a role: what one may not do is not offered. */
  may(role: Role): boolean {
    return this.me !== null && RANKS[this.me.role] >= RANKS[role];
  }
}

export const session = new Session();

/** From when until when a token holds, in milliseconds since 1970; one that tells nothing is over. */
export function lifeOf(token: string): { from: number; to: number } {
  try {
    const body = token.split(".")[1] ?? "";
    const said: unknown = JSON.parse(atob(body.replaceAll("-", "+").replaceAll("_", "/")));
    const { iat, exp } = said as { iat?: unknown; exp?: unknown };
    return typeof iat === "number" && typeof exp === "number" ? { from: iat * 1000, to: exp * 1000 } : OVER;
  } catch {
    return OVER;
  }
}
