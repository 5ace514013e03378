/** Error texts for requests that change a user account. */
import { Problem, describeError } from "../../api/client";
import { en } from "../../text/en";

const words = en.people.refused;
const TOO_MANY_REQUESTS = 429;

/** Return why the service refused the request, and what to do. */
export function explainError(error: unknown, username: string): string {
  if (!(error instanceof Problem)) return describeError(error);
  if (error.code === "last-admin") return words.lastAdmin(username);
  if (error.code === "already-exists") return words.exists(username);
  if (error.status === 404) return words.gone(username);
  return error.status === TOO_MANY_REQUESTS ? words.busy : describeError(error);
}
