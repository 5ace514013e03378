/** Reads again whenever something was told, one after the other: who cut off each reading for the next would, on a slow
 * line, never come to the end of one. */
export function createSerialReader(read: () => Promise<void>): { request(): void; stop(): void } {
  let isReading = false;
  let isWanted = false;

  async function readOn(): Promise<void> {
    isReading = true;
    while (isWanted) {
      isWanted = false;
      await read();
    }
    isReading = false;
  }

  return {
    request() {
      isWanted = true;
      if (!isReading) void readOn();
    },
    stop() {
      isWanted = false;
    },
  };
}
