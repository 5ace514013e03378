/** A new tab asks the other tabs of the browser who is signed in. They hear each other and nobody else does: the channel
 * belongs to the address. Nothing is stored for it, so whoever closes the last tab is signed out of the browser. */
const NAME = "meshfleet.session";

/** Milliseconds that a new tab waits for the others: long for a tab that is there, short for who has none. */
const PATIENCE = 250;

type Said = { asks: true } | { token: string };

/** Ask the others once: a token, or null where nobody is signed in. */
export function tokenOfOthers(): Promise<string | null> {
  return new Promise((resolve) => {
    const channel = new BroadcastChannel(NAME);
    const end = (token: string | null): void => {
      clearTimeout(timer);
      channel.close();
      resolve(token);
    };
    const timer = setTimeout(() => end(null), PATIENCE);
    channel.onmessage = ({ data }: MessageEvent<Said>) => {
      if ("token" in data) end(data.token);
    };
    channel.postMessage({ asks: true } satisfies Said);
  });
}

/** Answer tabs that ask, for as long as this one is open. */
export function answerOthers(token: () => string | null): void {
  const channel = new BroadcastChannel(NAME);
  channel.onmessage = ({ data }: MessageEvent<Said>) => {
    const ours = "asks" in data ? token() : null;
    if (ours !== null) channel.postMessage({ token: ours } satisfies Said);
  };
}
