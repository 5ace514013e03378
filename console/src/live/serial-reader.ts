/** Create a reader that runs once more for requests that arrive while it is running. Runs are not canceled: on a slow
 * connection none would ever finish. */
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
