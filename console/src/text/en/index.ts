/** All texts of the console in English, by page. Another language would have the same keys. */
import { alarms } from "./alarms";
import { api } from "./api";
import { apiKeys } from "./api-keys";
import { audit } from "./audit";
import { channels } from "./channels";
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
import { labels } from "./labels";
import { messages } from "./messages";
import { newJob } from "./new-job";
import { overview } from "./overview";
import { people } from "./people";
import { properties } from "./properties";
import { rejects } from "./rejects";
import { requests } from "./requests";
import { routes } from "./routes";
import { secrets } from "./secrets";
import { shell } from "./shell";
import { signIn } from "./sign-in";
import { sites } from "./sites";
import { topology } from "./topology";

export const en = {
  alarms,
  api,
  apiKeys,
  audit,
  channels,
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
  labels,
  messages,
  newJob,
  overview,
  people,
  properties,
  rejects,
  requests,
  routes,
  secrets,
  shell,
  signIn,
  sites,
  topology,
} as const;
