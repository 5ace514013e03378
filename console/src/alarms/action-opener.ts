/** Text of the link to the page on which something is done about an alarm, or about a device. */
import { en } from "../text/en";

const words = en.alarms.openers;

export function formatOpener(href: string): string {
  if (href.startsWith("/gateways/")) return words.gateway;
  if (href.startsWith("/gateways")) return words.gateways;
  if (href.startsWith("/jobs/")) return words.job;
  if (href.startsWith("/settings/channels")) return words.channels;
  return href.startsWith("/devices/") ? words.device : words.other;
}
