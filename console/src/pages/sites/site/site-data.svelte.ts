/** Everything that is stored about a site: floors, places, zones and survey points. */
import { type Schemas, api, requireBody } from "../../../api/client";
import { fetchAllPages } from "../../../api/all-pages";
import { MAX_PAGE_SIZE } from "../../../api/limits";
import { Resource } from "../../../api/resource.svelte";

export class SiteData {
  readonly site = new Resource<Schemas["Site"]>();
  readonly places = new Resource<readonly Schemas["SitePlace"][]>();
  readonly zones = new Resource<readonly Schemas["Zone"][]>();
  readonly surveyPoints = new Resource<readonly Schemas["SurveyPoint"][]>();

  /** First error of the parts that are loaded after the site. */
  readonly problem = $derived(this.places.problem ?? this.zones.problem ?? this.surveyPoints.problem);

  readonly #path: { readonly site_id: string };

  constructor(readonly id: string) {
    this.#path = { site_id: id };
  }

  async load(): Promise<void> {
    await Promise.all([this.loadSite(), this.loadPlaces(), this.loadZones(), this.loadSurvey()]);
  }

  async loadSite(): Promise<void> {
    const params = { path: this.#path };
    await this.site.load(async (signal) => {
      // openapi-fetch widens corners to lists of any length, here and below.
      return requireBody(await api.GET("/api/v1/sites/{site_id}", { params, signal })) as Schemas["Site"];
    });
  }

  async loadPlaces(): Promise<void> {
    await this.places.load((all) =>
      fetchAllPages(async (token, signal) => {
        const params = { path: this.#path, query: pageQuery(token) };
        return requireBody(await api.GET("/api/v1/sites/{site_id}/places", { params, signal }));
      }, all),
    );
  }

  async loadZones(): Promise<void> {
    await this.zones.load((all) =>
      fetchAllPages(async (token, signal) => {
        const params = { path: this.#path, query: pageQuery(token) };
        return requireBody(await api.GET("/api/v1/sites/{site_id}/zones", { params, signal })) as Schemas["ZonePage"];
      }, all),
    );
  }

  async loadSurvey(): Promise<void> {
    await this.surveyPoints.load((all) =>
      fetchAllPages(async (token, signal) => {
        const params = { path: this.#path, query: pageQuery(token) };
        return requireBody(await api.GET("/api/v1/sites/{site_id}/survey", { params, signal }));
      }, all),
    );
  }

  stop(): void {
    for (const each of [this.site, this.places, this.zones, this.surveyPoints]) each.stop();
  }
}

function pageQuery(token: string | undefined): { MaxResults: number; NextToken?: string } {
  return { MaxResults: MAX_PAGE_SIZE, ...(token && { NextToken: token }) };
}
