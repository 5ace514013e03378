/** Download of a file through the browser. */

/** Milliseconds until the object URL is revoked: the browser must have started by then. */
const REVOKE_DELAY = 60_000;

export function downloadFile(file: Blob, name: string): void {
  const address = URL.createObjectURL(file);
  const link = document.createElement("a");
  link.href = address;
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(address), REVOKE_DELAY);
}
