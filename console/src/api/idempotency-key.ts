/** Idempotency keys for requests. */

/** Create a random key. `crypto.randomUUID` exists only on pages served over TLS. */
export function createIdempotencyKey(): string {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}
