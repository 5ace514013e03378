/** Visibility of an element on the page. */
import type { Attachment } from "svelte/attachments";

/** Report the visibility of an element at once and on each change: `<p {@attach onVisibility((isVisible) => …)}>`. */
export function onVisibility(tell: (isSeen: boolean) => void): Attachment {
  return (element) => {
    const observer = new IntersectionObserver((changes) => tell(changes.at(-1)?.isIntersecting ?? false));
    observer.observe(element);
    return () => observer.disconnect();
  };
}
