/** What a token says of itself. It is ours to read, and the service's to believe. */
import { isObject } from "../json";

const OVER = { from: 0, to: 0 };

/** From when until when a token holds, in milliseconds since 1970; one that tells nothing is over. */
export function tokenLifetime(token: string): { from: number; to: number } {
  const { iat, exp } = claimsOf(token);
  return typeof iat === "number" && typeof exp === "number" ? { from: iat * 1000, to: exp * 1000 } : OVER;
}

/** Whose it is. */
export function tokenOwner(token: string): string | null {
  const { sub } = claimsOf(token);
  return typeof sub === "string" ? sub : null;
}

/** What it has in common with all tokens of the same login. */
export function tokenLogin(token: string): string | null {
  const { sid } = claimsOf(token);
  return typeof sid === "string" ? sid : null;
}

function claimsOf(token: string): Record<string, unknown> {
  try {
    const body = (token.split(".")[1] ?? "").replaceAll("-", "+").replaceAll("_", "/");
    const bytes = Uint8Array.from(atob(body), (sign) => sign.charCodeAt(0));
    const said: unknown = JSON.parse(new TextDecoder().decode(bytes));
    return isObject(said) ? said : {};
  } catch {
    return {};
  }
}
