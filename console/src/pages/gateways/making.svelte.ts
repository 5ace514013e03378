/** A password on its way. The service tells it once: from the moment it is asked for until it is seen, nobody leaves. */
import { tick } from "svelte";

import { Problem, type Schemas, textOf } from "../../api/client";
import { router } from "../../router.svelte";
import { en } from "../../text/en";

type Claim = Schemas["GatewayClaim"];

export class Making {
  isBusy = $state(false);
  /** Whether the reader wanted to leave meanwhile. */
  isLeaving = $state(false);
  problem = $state<string | null>(null);

  /** Have one made, and show it. */
  async run(make: () => Promise<Claim>, show: (claim: Claim) => void): Promise<void> {
    if (this.isBusy) return;
    this.isBusy = true;
    this.problem = null;
    const unguard = router.guard(() => this.mayLeave());
    try {
      show(await make());
      // What shows it guards it too, as soon as it is drawn.
      await tick();
    } catch (error) {
      const isUnheard = error instanceof Problem && error.status === 0;
      this.problem = isUnheard ? `${textOf(error)} ${en.gateways.unheard}` : textOf(error);
    } finally {
      unguard();
      this.isBusy = false;
      this.isLeaving = false;
    }
  }

  /** Who may not is told why. */
  mayLeave(): boolean {
    this.isLeaving = this.isBusy;
    return !this.isBusy;
  }
}
