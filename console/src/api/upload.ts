/** Sends a form with a file, and tells how far it is: `fetch` does not. Token, problems and the end of a session are
 * those of the client. */
import { en } from "../text/en";
import { Problem, handleErrorResponse } from "./client";
import { session } from "./session.svelte";

/** Milliseconds in which something must happen: a connection that died without a word brings nothing for ever. */
const LONGEST = 60_000;
/** The same when all is sent: the service looks into it and keeps it, and a proxy may pass it on only then. */
const LONGEST_CHECK = 600_000;

export interface UploadProgress {
  readonly bytes: number;
  readonly total: number;
}

/** The body of the answer; what failed is thrown as a `Problem`, and whoever gives up by the signal gets its reason. */
export async function upload<Body>(
  address: string,
  form: FormData,
  signal: AbortSignal,
  onprogress: (sent: UploadProgress) => void,
): Promise<Body> {
  const authorization = session.token === null ? null : `Bearer ${session.token}`;
  const response = answerOf(await send(address, form, authorization, signal, onprogress));
  if (!response.ok) throw await handleErrorResponse(response, address, authorization);
  return (await response.json()) as Body;
}

function send(
  address: string,
  form: FormData,
  authorization: string | null,
  signal: AbortSignal,
  onprogress: (sent: UploadProgress) => void,
): Promise<XMLHttpRequest> {
  return new Promise((resolve, reject) => {
    const request = new XMLHttpRequest();
    let timer: ReturnType<typeof setTimeout> | undefined;
    const end = (settle: () => void): void => {
      clearTimeout(timer);
      signal.removeEventListener("abort", giveUp);
      settle();
    };
    const fail = (): void => end(() => reject(new Problem(0, "unreachable", en.common.unreachable)));
    const giveUp = (): void => {
      end(() => reject(signal.reason));
      request.abort();
    };
    const wait = (longest: number): void => {
      clearTimeout(timer);
      timer = setTimeout(() => {
        fail();
        request.abort();
      }, longest);
    };

    request.upload.onprogress = ({ loaded, total }) => {
      wait(loaded < total ? LONGEST : LONGEST_CHECK);
      onprogress({ bytes: loaded, total });
    };
    request.onerror = fail;
    request.onload = () => end(() => resolve(request));
    signal.addEventListener("abort", giveUp);
    request.open("POST", address);
    if (authorization !== null) request.setRequestHeader("Authorization", authorization);
    wait(LONGEST);
    request.send(form);
  });
}

/** The answer as `fetch` gives it. Some statuses have no body, not even an empty one. */
function answerOf(request: XMLHttpRequest): Response {
  const headers = new Headers();
  const retryAfter = request.getResponseHeader("Retry-After");
  if (retryAfter !== null) headers.set("Retry-After", retryAfter);
  return new Response(request.responseText || null, { status: request.status, headers });
}
