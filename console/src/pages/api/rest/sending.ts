/** Sends what somebody tries. The component that shows requests never has the token: it shows a word in its place, which
 * is replaced when the request leaves. */
import type { TriedRequest } from "swagger-ui-dist/swagger-ui-es-bundle.js";

import type { Pass } from "./pass.svelte";

const SHOWN = "Bearer TOKEN";
const LOGIN = "/api/v1/auth/login";

/** Milliseconds for which a stream is read that has no end. */
const LISTENED = 10_000;

/** A request as it is shown, and how it is sent. */
export function prepared(request: TriedRequest, pass: Pass): TriedRequest {
  if (pass.token !== null) request.headers["Authorization"] = SHOWN;
  request.userFetch = (url, { method, headers, body }) => send(new Request(url, { method, headers, body: body ?? null }), pass);
  return request;
}

async function send(request: Request, pass: Pass): Promise<Response> {
  if (pass.token !== null) request.headers.set("Authorization", `Bearer ${pass.token}`);
  const response = await fetch(request, { credentials: "omit" });
  if (response.ok && new URL(request.url).pathname === LOGIN) await takeToken(response.clone(), pass);
  const isStream = response.headers.get("Content-Type")?.startsWith("text/event-stream") ?? false;
  return isStream ? beginningOf(response) : response;
}

/** Who logs in here goes on with that token. */
async function takeToken(response: Response, pass: Pass): Promise<void> {
  const said: unknown = await response.json();
  if (typeof said === "object" && said !== null && "authToken" in said && typeof said.authToken === "string") {
    pass.use(said.authToken, "login");
  }
}

/** What comes of a stream within a while; the component would wait for its end. */
async function beginningOf(response: Response): Promise<Response> {
  const reader = response.body?.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  if (reader) {
    const timer = setTimeout(() => void reader.cancel(), LISTENED);
    for (let piece = await reader.read(); !piece.done; piece = await reader.read()) text += piece.value;
    clearTimeout(timer);
  }
  const { status, statusText, headers } = response;
  return new Response(text, { status, statusText, headers });
}
