/** Every word of the console, in English, page by page. Other languages have the same keys. */
import { api } from "./api";
import { asking } from "./requests";
import { audit } from "./audit";
import { charts } from "./charts";
import { common } from "./common";
import { device } from "./device";
import { devices } from "./devices";
import { events } from "./events";
import { firmware } from "./firmware";
import { gateways } from "./gateways";
import { history } from "./history";
import { job } from "./job";
import { jobs } from "./jobs";
import { keys } from "./keys";
import { labels } from "./labels";
import { messages } from "./messages";
import { newJob } from "./new-job";
import { once } from "./secrets";
import { overview } from "./overview";
import { people } from "./people";
import { properties } from "./properties";
import { rejects } from "./rejects";
import { shell } from "./shell";
import { signIn } from "./signin";

export const en = {
  api,
  asking,
  audit,
  charts,
  common,
  device,
  devices,
  events,
  firmware,
  gateways,
  history,
  job,
  jobs,
  keys,
  labels,
  messages,
  newJob,
  once,
  overview,
  people,
  properties,
  rejects,
  shell,
  signIn,
} as const;
