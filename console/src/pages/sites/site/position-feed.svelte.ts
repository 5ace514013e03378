/** Current positions of the devices on a site.
 *
 * The service has no live events of positions yet, so they are requested regularly while the tab is visible. This module
 * is the only one to change when it has.
 */
import { type Schemas, api, requireBody } from "../../../api/client";
import { Resource } from "../../../api/resource.svelte";
import { startPolling } from "../../../live/polling";
import { live } from "../../../live/socket.svelte";

type SitePositions = Schemas["SitePositions"];

export class PositionFeed {
  readonly loaded = new Resource<SitePositions>();
  readonly items = $derived<SitePositions["items"]>(this.loaded.value?.items ?? []);
  readonly suspiciousAnchors = $derived<SitePositions["suspiciousAnchors"]>(this.loaded.value?.suspiciousAnchors ?? []);
  readonly byDevice = $derived(new Map(this.items.map((each) => [each.device, each])));

  constructor(readonly siteId: string) {}

  /** Keep the positions up to date until the returned function is called. */
  start(): () => void {
    const stopPolling = startPolling(() => this.load());
    void this.load();
    return () => {
      stopPolling();
      this.loaded.stop();
    };
  }

  async load(): Promise<void> {
    const params = { path: { site_id: this.siteId } };
    await this.loaded.load(async (signal) => {
      const positions = requireBody(await api.GET("/api/v1/sites/{site_id}/positions", { params, signal }));
      // Values do not change while the user has paused them.
      return live.state === "paused" && this.loaded.value ? this.loaded.value : positions;
    });
  }
}
