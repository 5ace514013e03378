/** Why the service did not do what it was asked with a person, in words that say what to do. */
import { Problem, describeError } from "../../api/client";
import { en } from "../../text/en";

const words = en.people.refused;
const TOO_MANY = 429;

export function refusal(error: unknown, username: string): string {
  if (!(error instanceof Problem)) return describeError(error);
  if (error.code === "last-admin") return words.lastAdmin(username);
  if (error.code === "already-exists") return words.exists(username);
  if (error.status === 404) return words.gone(username);
  return error.status === TOO_MANY ? words.busy : describeError(error);
}
