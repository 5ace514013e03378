/** Checks and hash of a file that may be a firmware image. */

/** Maximum size of a Nordic package in bytes: the service unpacks it. The limit for RAUC bundles is a setting of the
 * service. */
export const MAX_PACKAGE_SIZE = 16 * 1024 * 1024;
/** Maximum size of a hashed file in bytes: a browser hashes a whole file in memory. */
const MAX_HASHED_SIZE = 512 * 1024 * 1024;

const BUNDLE_NAME = /\.raucb$/i;
const PACKAGE_NAME = /\.(zip|bin)$/i;

/** Image type of the REST interface: 1 is a Nordic package or bare image, 2 a RAUC bundle. */
export type ImageType = "1" | "2";

/** Return the image type by the extension of a file name; null: not an image. */
export function detectType(name: string): ImageType | null {
  if (BUNDLE_NAME.test(name)) return "2";
  return PACKAGE_NAME.test(name) ? "1" : null;
}

/** Return whether the browser can read a file: it may be deleted, changed, or a directory. */
export async function isReadable(file: File): Promise<boolean> {
  try {
    await file.slice(0, 1).arrayBuffer();
    return true;
  } catch {
    return false;
  }
}

/** Return the SHA-256 of a file as hex; null: the browser cannot compute it. Reject if the file cannot be read. */
export async function computeSha256(file: File): Promise<string | null> {
  // Browsers offer crypto.subtle only to pages loaded with TLS or from localhost.
  if (!isSecureContext || file.size > MAX_HASHED_SIZE) return null;
  const hash = new Uint8Array(await crypto.subtle.digest("SHA-256", await file.arrayBuffer()));
  return Array.from(hash, (byte) => byte.toString(16).padStart(2, "0")).join("");
}
