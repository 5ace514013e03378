/** Pages that everybody may read have an address at which one signs in and is there again. */
import type { PageLocation } from "../router.svelte";

const KEY = "sign-in";

/** Whether somebody wants to sign in at a page that is open to all. */
export function isSignInRequested({ query }: PageLocation): boolean {
  return query.has(KEY);
}

/** Where to sign in, to be at a place again afterwards. */
export function signInAddress({ path, query }: PageLocation): string {
  return `${path}?${new URLSearchParams([...query, [KEY, "yes"]])}`;
}
