/** Address of the sign-in on a public page, which returns to the page. */
import type { PageLocation } from "../router.svelte";

const PARAM = "sign-in";

/** Return whether the address requests a sign-in on a public page. */
export function isSignInRequested({ query }: PageLocation): boolean {
  return query.has(PARAM);
}

/** Return the sign-in address that returns to a location. */
export function signInAddress({ path, query }: PageLocation): string {
  return `${path}?${new URLSearchParams([...query, [PARAM, "yes"]])}`;
}
