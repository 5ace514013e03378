/** Typed client of the REST interface, generated from its OpenAPI document, with the token of the session. */
import createClient, { type Middleware } from "openapi-fetch";

import type { components, paths } from "../../generated/schema";
import { clock } from "../clock.svelte";
import { en } from "../text/en";
import { reportUnreachable } from "./unreachable";
import { session } from "./session.svelte";

/** Schemas of the OpenAPI document by name. */
export type Schemas = components["schemas"];

/** Error response of the service, or a request without a response (status 0). */
export class Problem extends Error {
  constructor(
    readonly status: number,
    readonly code: string,
    /** Sentence that names every invalid field. */
    message: string,
    /** Seconds to wait before a retry; null if the service does not say. */
    readonly retryAfter: number | null = null,
    /** Problems of single fields, by their names in the interface. */
    readonly faults: readonly Schemas["FieldProblem"][] = [],
  ) {
    super(message);
  }
}

/** Milliseconds until the headers of a response must arrive. */
const HEADER_TIMEOUT = 30_000;

/** Return the text to show for an error. Unexpected errors are logged. */
export function describeError(error: unknown): string {
  if (error instanceof Problem) return error.message;
  console.error(error);
  return en.common.unexpected;
}

/** Return the body of a successful response. Error responses were thrown before. */
export function requireBody<Body>(answer: { data?: Body }): Body {
  if (answer.data === undefined) throw new Error("the service answered with nothing");
  return answer.data;
}

/** Return the body of an answer that is CSV for requests that accept it; others, such as those of the console, get JSON. */
export function requireJson<Body>(answer: { data?: Body }): Exclude<Body, string> {
  const body = requireBody(answer);
  if (typeof body === "string") throw new Error("the service answered with CSV");
  return body as Exclude<Body, string>;
}

const authorize: Middleware = {
  onRequest({ request }) {
    // A sign-out sends the token that the session has dropped already.
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

/** Convert an error response to a Problem. Expire the session or recheck the role where the response says so. */
export async function handleErrorResponse(response: Response, address: string, authorization: string | null): Promise<Problem> {
  const problem = await parseProblem(response);
  if (response.status === 401 && endsSession(address, authorization, problem)) session.expire();
  if (problem.code === "not-allowed" && hasCurrentToken(authorization)) session.recheckRole();
  // The text of the service is for programs. A user needs to know that the action was not done.
  return problem.code === "not-logged-in" ? new Problem(response.status, problem.code, en.common.sessionEnded) : problem;
}

/** Return whether a 401 ends the session: not for a wrong password, for a valid token that cannot be renewed, or for a
 * request with an older token. */
function endsSession(address: string, authorization: string | null, problem: Problem): boolean {
  if (problem.code === "wrong-credentials" || address.endsWith("/auth/refresh")) return false;
  return hasCurrentToken(authorization);
}

/** Return whether a request had the current token. */
function hasCurrentToken(authorization: string | null): boolean {
  return session.token !== null && authorization === `Bearer ${session.token}`;
}

/** Call `fetch` with a time limit for the headers, since a dead connection never answers; the body may take longer. The
 * body is read completely, so that a connection that ends within it fails here. */
async function fetchWithTimeout(request: Request): Promise<Response> {
  const limit = new AbortController();
  const timer = setTimeout(() => limit.abort(new DOMException("no answer", "TimeoutError")), HEADER_TIMEOUT);
  try {
    const response = await clock.fetch(request, { signal: AbortSignal.any([request.signal, limit.signal]) });
    clearTimeout(timer);
    await response.clone().arrayBuffer();
    return response;
  } finally {
    clearTimeout(timer);
  }
}

export const api = createClient<paths>({ fetch: fetchWithTimeout });
api.use(authorize);

async function parseProblem(response: Response): Promise<Problem> {
  try {
    const body = (await response.json()) as Partial<Schemas["Problem"]>;
    const text = body.detail ?? body.title ?? response.statusText;
    const wait = Number(response.headers.get("Retry-After") ?? NaN);
    const retryAfter = Number.isFinite(wait) ? wait : null;
    return new Problem(response.status, body.code ?? "unknown", text, retryAfter, body.errors ?? []);
  } catch {
    return new Problem(response.status, "unknown", en.common.unexpectedStatus(response.status));
  }
}
