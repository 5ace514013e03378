/** Claims of an access token. The console only reads them; the service verifies them. */
import { isObject } from "../json";

const EXPIRED = { from: 0, to: 0 };

/** Return the validity of a token in milliseconds since 1970; zeros if it has no times. */
export function tokenLifetime(token: string): { from: number; to: number } {
  const { iat, exp } = parseClaims(token);
  return typeof iat === "number" && typeof exp === "number" ? { from: iat * 1000, to: exp * 1000 } : EXPIRED;
}

/** Return the user name of a token. */
export function tokenOwner(token: string): string | null {
  const { sub } = parseClaims(token);
  return typeof sub === "string" ? sub : null;
}

/** Return the session id that all tokens of one login share. */
export function tokenLogin(token: string): string | null {
  const { sid } = parseClaims(token);
  return typeof sid === "string" ? sid : null;
}

function parseClaims(token: string): Record<string, unknown> {
  try {
    const body = (token.split(".")[1] ?? "").replaceAll("-", "+").replaceAll("_", "/");
    const bytes = Uint8Array.from(atob(body), (sign) => sign.charCodeAt(0));
    const claims: unknown = JSON.parse(new TextDecoder().decode(bytes));
    return isObject(claims) ? claims : {};
  } catch {
    return {};
  }
}
