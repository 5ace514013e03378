/** Every word of the console, in English, page by page. Other languages have the same keys. */
import { asking } from "./asking";
import { charts } from "./charts";
import { common } from "./common";
import { device } from "./device";
import { devices } from "./devices";
import { events } from "./events";
import { gateways } from "./gateways";
import { history } from "./history";
import { labels } from "./labels";
import { overview } from "./overview";
import { properties } from "./properties";
import { rejects } from "./rejects";
import { shell } from "./shell";
import { signIn } from "./signin";

export const en = {
  asking,
  charts,
  common,
  device,
  devices,
  events,
  gateways,
  history,
  labels,
  overview,
  properties,
  rejects,
  shell,
  signIn,
} as const;
