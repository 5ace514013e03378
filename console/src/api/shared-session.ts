/** Session sharing between the tabs of a browser: a new tab requests the token from the others, and a sign-out ends the
 * session in all of them. The channel is limited to the origin. Nothing is stored, so closing the last tab ends the
 * session of the browser. */
const CHANNEL = "meshfleet.session";

/** Milliseconds to wait for another tab: a busy tab answers late. */
const ANSWER_TIMEOUT = 30_000;

/** User and login of a sign-out. */
export interface SignOut {
  readonly owner: string | null;
  readonly login: string | null;
}

type TabMessage = { asks: true } | { token: string } | { left: SignOut };

/** Request the token from the other tabs. Return null if none of them is signed in. */
export function requestSharedToken(): Promise<string | null> {
  return new Promise((resolve) => {
    const channel = new BroadcastChannel(CHANNEL);
    const end = (token: string | null): void => {
      clearTimeout(timer);
      channel.close();
      resolve(token);
    };
    const timer = setTimeout(() => end(null), ANSWER_TIMEOUT);
    channel.onmessage = ({ data }: MessageEvent<TabMessage>) => {
      if ("token" in data) end(data.token);
    };
    channel.postMessage({ asks: true } satisfies TabMessage);
  });
}

/** Notify the other tabs of a sign-out. */
export function broadcastToTabs(left: SignOut): void {
  const channel = new BroadcastChannel(CHANNEL);
  channel.postMessage({ left } satisfies TabMessage);
  channel.close();
}

/** Answer token requests of other tabs and report their sign-outs, while this tab is open. */
export function shareToken(token: () => string | null, onleft: (left: SignOut) => void): void {
  const channel = new BroadcastChannel(CHANNEL);
  channel.onmessage = ({ data }: MessageEvent<TabMessage>) => {
    if ("left" in data) return onleft(data.left);
    const ownToken = "asks" in data ? token() : null;
    if (ownToken !== null) channel.postMessage({ token: ownToken } satisfies TabMessage);
  };
}
