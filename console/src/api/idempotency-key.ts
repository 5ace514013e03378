/** Keys under which the service does once what it is asked several times. */

/** A name that nobody else has. Browsers know UUIDs only on pages that came with TLS. */
export function createIdempotencyKey(): string {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}
