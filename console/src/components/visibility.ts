/** Whether something on a page is in onVisibility. */
import type { Attachment } from "svelte/attachments";

/** Tells it at once, and whenever it changes: `<p {@attach onVisibility((isSeen) => …)}>`. */
export function onVisibility(tell: (isSeen: boolean) => void): Attachment {
  return (element) => {
    const observer = new IntersectionObserver((changes) => tell(changes.at(-1)?.isIntersecting ?? false));
    observer.observe(element);
    return () => observer.disconnect();
  };
}
