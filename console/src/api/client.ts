/** The interface for programs, as everybody has it: typed from its own document, with our token. */
import createClient, { type Middleware } from "openapi-fetch";

import type { components, paths } from "../../generated/schema";
import { clock } from "../clock.svelte";
import { en } from "../text/en";
import { reportUnreachable } from "./unreachable";
import { session } from "./session.svelte";

/** Bodies by the names that the document gives them. */
export type Schemas = components["schemas"];

/** What the service said when it did not do what it was asked. */
export class Problem extends Error {
  constructor(
    readonly status: number,
    readonly code: string,
    /** A sentence that names every fault. */
    message: string,
    /** Seconds to wait before the next try, if the service names them. */
    readonly retryAfter: number | null = null,
    /** What is wrong with single fields, by the names that the interface gives them. */
    readonly faults: readonly Schemas["FieldProblem"][] = [],
  ) {
    super(message);
  }
}

/** Milliseconds until the beginning of an answer must be there. */
const LONGEST = 30_000;

/** What to tell the reader about whatever was thrown. */
export function describeError(error: unknown): string {
  if (error instanceof Problem) return error.message;
  console.error(error);
  return en.common.unexpected;
}

/** The body of an answer that has one: what failed was thrown before. */
export function requireBody<Body>(answer: { data?: Body }): Body {
  if (answer.data === undefined) throw new Error("the service answered with nothing");
  return answer.data;
}

const signed: Middleware = {
  onRequest({ request }) {
    // Who signs out brings the token that is no more.
    if (session.token !== null && !request.headers.has("Authorization")) {
      request.headers.set("Authorization", `Bearer ${session.token}`);
    }
    return request;
  },
  async onResponse({ request, response }) {
    if (response.ok) return response;
    throw await handleErrorResponse(response, request.url, request.headers.get("Authorization"));
  },
  onError({ error }) {
    if (error instanceof DOMException && error.name === "AbortError") return error;
    reportUnreachable();
    return new Problem(0, "unreachable", en.common.unreachable);
  },
};

/** What a refusal says; it may end the session, or tell that one may do less than before. */
export async function handleErrorResponse(response: Response, address: string, authorization: string | null): Promise<Problem> {
  const problem = await problemOf(response);
  if (response.status === 401 && isOver(address, authorization, problem)) session.expire();
  if (problem.code === "not-allowed" && isOurs(authorization)) session.recheckRole();
  // The service tells programs what to come with. Who comes back to a page wants to know what became of it.
  return problem.code === "not-logged-in" ? new Problem(response.status, problem.code, en.common.sessionEnded) : problem;
}

/** Whether a refusal ends the session: not when a password was wrong, or when a token that still holds cannot be
 * renewed, and not when another token is used by now. */
function isOver(address: string, authorization: string | null, problem: Problem): boolean {
  if (problem.code === "wrong-credentials" || address.endsWith("/auth/refresh")) return false;
  return isOurs(authorization);
}

/** Whether it was asked with the token of now. */
function isOurs(authorization: string | null): boolean {
  return session.token !== null && authorization === `Bearer ${session.token}`;
}

/** As `fetch`, but nobody waits for ever: a connection that died without a word answers nothing. What is on its way may
 * take its time. The whole answer is here then, so that a connection that ends within it fails as others do. */
async function ask(request: Request): Promise<Response> {
  const limit = new AbortController();
  const timer = setTimeout(() => limit.abort(new DOMException("no answer", "TimeoutError")), LONGEST);
  try {
    const answer = await clock.fetch(request, { signal: AbortSignal.any([request.signal, limit.signal]) });
    clearTimeout(timer);
    await answer.clone().arrayBuffer();
    return answer;
  } finally {
    clearTimeout(timer);
  }
}

export const api = createClient<paths>({ fetch: ask });
api.use(signed);

async function problemOf(response: Response): Promise<Problem> {
  try {
    const said = (await response.json()) as Partial<Schemas["Problem"]>;
    const text = said.detail ?? said.title ?? response.statusText;
    const wait = Number(response.headers.get("Retry-After") ?? NaN);
    const retryAfter = Number.isFinite(wait) ? wait : null;
    return new Problem(response.status, said.code ?? "unknown", text, retryAfter, said.errors ?? []);
  } catch {
    return new Problem(response.status, "unknown", en.common.unexpectedStatus(response.status));
  }
}
