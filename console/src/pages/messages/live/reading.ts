/** Create an attachment that reports whether the user reads a list: the pointer or the keyboard focus is in it, or it
 * is scrolled down. */
export function trackReading(report: (isRead: boolean) => void): (list: HTMLElement) => () => void {
  return (list) => {
    let hasPointer = false;
    let hasFocus = false;
    let isDown = false;
    const listeners = new AbortController();
    // The focused element may vanish while the list renders, when state must not change.
    const reportLater = (): void =>
      queueMicrotask(() => {
        if (!listeners.signal.aborted) report(hasPointer || hasFocus || isDown);
      });
    const listen = <Name extends keyof HTMLElementEventMap>(
      name: Name,
      update: (event: HTMLElementEventMap[Name]) => void,
      capture = false,
    ): void => {
      const listener = (event: HTMLElementEventMap[Name]): void => {
        update(event);
        reportLater();
      };
      list.addEventListener(name, listener, { signal: listeners.signal, capture });
    };
    listen("pointerenter", () => (hasPointer = true));
    listen("pointerleave", () => (hasPointer = false));
    listen("focusin", ({ target }) => (hasFocus = target instanceof Element && target.matches(":focus-visible")));
    // Focus that moves to another row stays inside.
    listen("focusout", ({ relatedTarget: next }) => (hasFocus &&= next instanceof Node && list.contains(next)));
    // Scroll events do not bubble, so they are captured.
    const scroll = ({ target }: Event): void => void (isDown = target instanceof Element && target.scrollTop > 0);
    listen("scroll", scroll, true);
    return () => {
      listeners.abort();
      report(false);
    };
  };
}
