/** Hands a file to the browser, which saves it. */

/** How long the browser may take to begin with it. */
const FOR = 60_000;

export function downloadFile(file: Blob, name: string): void {
  const address = URL.createObjectURL(file);
  const link = document.createElement("a");
  link.href = address;
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(address), FOR);
}
