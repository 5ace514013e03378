/** Sending of trial requests. Swagger UI never has the token: it shows a placeholder, which is replaced when the
 * request is sent. */
import type { TriedRequest } from "swagger-ui-dist/swagger-ui-es-bundle.js";

import type { TrialToken } from "./trial-token.svelte";

const PLACEHOLDER = "Bearer TOKEN";
const LOGIN_PATH = "/api/v1/auth/login";

/** Milliseconds for which an endless stream is read. */
const STREAM_TIME_LIMIT = 10_000;

/** Add the placeholder to a request, and the function that sends it. */
export function prepareRequest(request: TriedRequest, trialToken: TrialToken): TriedRequest {
  if (trialToken.token !== null) request.headers["Authorization"] = PLACEHOLDER;
  request.userFetch = (url, { method, headers, body }) => send(new Request(url, { method, headers, body: body ?? null }), trialToken);
  return request;
}

async function send(request: Request, trialToken: TrialToken): Promise<Response> {
  if (trialToken.token !== null) request.headers.set("Authorization", `Bearer ${trialToken.token}`);
  const response = await fetch(request, { credentials: "omit" });
  if (response.ok && new URL(request.url).pathname === LOGIN_PATH) await useReturnedToken(response.clone(), trialToken);
  const isStream = response.headers.get("Content-Type")?.startsWith("text/event-stream") ?? false;
  return isStream ? readBeginning(response) : response;
}

/** Use the token of a successful login for further requests. */
async function useReturnedToken(response: Response, trialToken: TrialToken): Promise<void> {
  const body: unknown = await response.json();
  if (typeof body === "object" && body !== null && "authToken" in body && typeof body.authToken === "string") {
    trialToken.use(body.authToken, "login");
  }
}

/** Return the part of a stream that arrives within the time limit: Swagger UI would wait for its end. */
async function readBeginning(response: Response): Promise<Response> {
  const reader = response.body?.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  if (reader) {
    const timer = setTimeout(() => void reader.cancel(), STREAM_TIME_LIMIT);
    for (let chunk = await reader.read(); !chunk.done; chunk = await reader.read()) text += chunk.value;
    clearTimeout(timer);
  }
  const { status, statusText, headers } = response;
  return new Response(text, { status, statusText, headers });
}
