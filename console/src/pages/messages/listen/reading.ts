/** Whether somebody is about to read a list: the pointer is in it, or the focus of who uses the keyboard, or what is shown
 * is further down. */
export function reading(tell: (isRead: boolean) => void): (list: HTMLElement) => () => void {
  return (list) => {
    let hasPointer = false;
    let hasFocus = false;
    let isDown = false;
    const ends = new AbortController();
    // What has the focus may go while the list is drawn: nothing can be changed in that very moment.
    const say = (): void =>
      queueMicrotask(() => {
        if (!ends.signal.aborted) tell(hasPointer || hasFocus || isDown);
      });
    const hear = <Name extends keyof HTMLElementEventMap>(
      name: Name,
      heard: (event: HTMLElementEventMap[Name]) => void,
      capture = false,
    ): void => {
      const listener = (event: HTMLElementEventMap[Name]): void => {
        heard(event);
        say();
      };
      list.addEventListener(name, listener, { signal: ends.signal, capture });
    };
    hear("pointerenter", () => (hasPointer = true));
    hear("pointerleave", () => (hasPointer = false));
    hear("focusin", ({ target }) => (hasFocus = target instanceof Element && target.matches(":focus-visible")));
    // From one row to the next it stays inside.
    hear("focusout", ({ relatedTarget: next }) => (hasFocus &&= next instanceof Node && list.contains(next)));
    // Scrolling is told to nobody above: it is heard on its way down.
    const scroll = ({ target }: Event): void => void (isDown = target instanceof Element && target.scrollTop > 0);
    hear("scroll", scroll, true);
    return () => {
      ends.abort();
      tell(false);
    };
  };
}
