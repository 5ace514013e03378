/** A new tab asks the other tabs of the browser who is signed in, and whoever signs out is out in all of them. They hear
 * each other and nobody else does: the channel belongs to the address. Nothing is stored for it, so whoever closes the
 * last tab is signed out of the browser. */
const NAME = "meshfleet.session";

/** Milliseconds after which no answer of the others is expected any more: a tab that is busy answers late. */
const PATIENCE = 30_000;

/** Who signed out, and of which login. */
export interface SignOut {
  readonly owner: string | null;
  readonly login: string | null;
}

type Said = { asks: true } | { token: string } | { left: SignOut };

/** Ask the others once: a token, or null where nobody is signed in. */
export function requestSharedToken(): Promise<string | null> {
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

/** Say that somebody has signed out. */
export function broadcastToTabs(left: SignOut): void {
  const channel = new BroadcastChannel(NAME);
  channel.postMessage({ left } satisfies Said);
  channel.close();
}

/** Answer tabs that ask, and hear who signs out, for as long as this one is open. */
export function shareToken(token: () => string | null, onleft: (left: SignOut) => void): void {
  const channel = new BroadcastChannel(NAME);
  channel.onmessage = ({ data }: MessageEvent<Said>) => {
    if ("left" in data) return onleft(data.left);
    const ours = "asks" in data ? token() : null;
    if (ours !== null) channel.postMessage({ token: ours } satisfies Said);
  };
}
