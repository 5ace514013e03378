/** Floors of a site: their names, and which one the page shows. */
import type { Schemas } from "../../../api/client";
import { router } from "../../../router.svelte";
import { en } from "../../../text/en";
import type { SiteAddress } from "./site-address.svelte";
import type { SiteData } from "./site-data.svelte";

export class SiteFloors {
  readonly all = $derived.by<readonly Schemas["Floor"][]>(() => this.data.site.value?.floors ?? []);
  /** Floor that is shown: the one in the address, or the ground floor; null until the site is loaded. */
  readonly shown = $derived.by<Schemas["Floor"] | null>(() => {
    const named = this.all.find((each) => String(each.floor) === this.address.floor);
    return named ?? this.all.find((each) => each.floor === 0) ?? this.all[0] ?? null;
  });

  constructor(
    readonly data: SiteData,
    readonly address: SiteAddress,
  ) {}

  readonly getName = (number: number): string =>
    en.sites.floorName(number, this.all.find((each) => each.floor === number)?.name ?? null);

  show(number: number): void {
    if (number !== this.shown?.floor) router.navigate(this.address.withFloor(number), { stays: true });
  }
}
