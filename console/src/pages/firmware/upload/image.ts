/** The file that somebody chose: whether it can be an image, and its hash. */

/** Bytes of a Nordic package at most: the service looks into it. A RAUC bundle may have as many as the service is set to. */
export const LARGEST_PACKAGE = 16 * 1024 * 1024;
/** Bytes that are hashed at most: a browser hashes a file as a whole, in memory. */
const LARGEST_HASHED = 512 * 1024 * 1024;

const BUNDLE = /\.raucb$/i;
const PACKAGE = /\.(zip|bin)$/i;

export type Type = "1" | "2";

/** What kind of image a file is by its ending; null: none. */
export function typeOf(name: string): Type | null {
  if (BUNDLE.test(name)) return "2";
  return PACKAGE.test(name) ? "1" : null;
}

/** Whether the browser can still read a file: it may be gone, have changed, or be a folder. */
export async function isReadable(file: File): Promise<boolean> {
  try {
    await file.slice(0, 1).arrayBuffer();
    return true;
  } catch {
    return false;
  }
}

/** The SHA-256 of a file; null: the browser does not compute it here. What cannot be read is thrown. */
export async function hashOf(file: File): Promise<string | null> {
  // Browsers keep it from pages that came without TLS.
  if (!isSecureContext || file.size > LARGEST_HASHED) return null;
  const hash = new Uint8Array(await crypto.subtle.digest("SHA-256", await file.arrayBuffer()));
  return Array.from(hash, (byte) => byte.toString(16).padStart(2, "0")).join("");
}
