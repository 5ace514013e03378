/** Upload of a form with a file and progress, which `fetch` does not report. Token, problems and session expiry work as
 * in the client. */
import { en } from "../text/en";
import { Problem, handleErrorResponse } from "./client";
import { session } from "./session.svelte";

/** Milliseconds without progress before the upload fails: a dead connection reports nothing. */
const PROGRESS_TIMEOUT = 60_000;
/** Milliseconds to wait after the last byte, while the service checks and stores the file or a proxy forwards it. */
const CHECK_TIMEOUT = 600_000;

export interface UploadProgress {
  readonly bytes: number;
  readonly total: number;
}

/** Send a form, by default with POST, and return the body of the response. Throw a `Problem` on failure, or the reason of the signal when
 * aborted. */
export async function upload<Body>(
  address: string,
  form: FormData,
  signal: AbortSignal,
  onprogress: (sent: UploadProgress) => void,
  method: "POST" | "PUT" = "POST",
): Promise<Body> {
  const authorization = session.token === null ? null : `Bearer ${session.token}`;
  const response = toResponse(await sendForm(method, address, form, authorization, signal, onprogress));
  if (!response.ok) throw await handleErrorResponse(response, address, authorization);
  return (await response.json()) as Body;
}

function sendForm(
  method: string,
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
      wait(loaded < total ? PROGRESS_TIMEOUT : CHECK_TIMEOUT);
      onprogress({ bytes: loaded, total });
    };
    request.onerror = fail;
    request.onload = () => end(() => resolve(request));
    signal.addEventListener("abort", giveUp);
    request.open(method, address);
    if (authorization !== null) request.setRequestHeader("Authorization", authorization);
    wait(PROGRESS_TIMEOUT);
    request.send(form);
  });
}

/** Return the response as `fetch` does. Some statuses must have no body, not even an empty one. */
function toResponse(request: XMLHttpRequest): Response {
  const headers = new Headers();
  const retryAfter = request.getResponseHeader("Retry-After");
  if (retryAfter !== null) headers.set("Retry-After", retryAfter);
  return new Response(request.responseText || null, { status: request.status, headers });
}
