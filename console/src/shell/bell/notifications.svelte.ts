/** Notifications of the browser about critical alarms, while a tab is open. Each browser is asked for itself. */
import type { Schemas } from "../../api/client";
import { router } from "../../router.svelte";
import { browserStorage } from "../../storage";
import { en } from "../../text/en";

const STORAGE_KEY = "meshfleet.notifications";
const ON = "on";

class BrowserNotifications {
  /** Whether the browser offers them: not on insecure addresses. */
  readonly isPossible = "Notification" in window && window.isSecureContext;
  isOn = $state(browserStorage.read(STORAGE_KEY) === ON && this.isPossible && Notification.permission === "granted");
  /** Whether the user has forbidden them in the browser. */
  isForbidden = $state(false);

  /** Moment of the last opening of each alarm that was shown or was open before, by its id. */
  readonly #shown = new Map<string, string>();

  async switch(isOn: boolean): Promise<void> {
    const isAllowed = isOn && (await Notification.requestPermission()) === "granted";
    this.isForbidden = isOn && !isAllowed;
    this.isOn = isAllowed;
    browserStorage.write(STORAGE_KEY, isAllowed ? ON : null);
  }

  /** Show a critical alarm that was opened or became critical. Tabs that show the same replace each other's message. */
  show(alarm: Schemas["Alarm"]): void {
    const isUrgent = alarm.severity === "critical" && alarm.state === "open" && alarm.silencedUntil === null;
    if (!this.isOn || !isUrgent || this.#shown.get(alarm.id) === alarm.openedAt) return;
    this.#shown.set(alarm.id, alarm.openedAt);
    const message = new Notification(en.shell.product, { body: alarm.sentence, tag: `meshfleet-${alarm.id}` });
    message.onclick = () => {
      window.focus();
      router.navigate(`/alarms/${encodeURIComponent(alarm.id)}`);
      message.close();
    };
  }
}

export const notifications = new BrowserNotifications();
