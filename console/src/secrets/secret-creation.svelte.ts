/** A secret on its way. It is told once: from the moment it is asked for until it is seen, nobody leaves. */
import { tick } from "svelte";

import { Problem, describeError } from "../api/client";
import { router } from "../router.svelte";

export class SecretCreation {
  isBusy = $state(false);
  /** Whether the reader wanted to leave meanwhile. */
  isLeaving = $state(false);
  problem = $state<string | null>(null);

  /** `unheard` is what to do when nobody knows whether there is one now; `told` knows better words for a refusal. */
  constructor(
    readonly noResponseHint: string,
    readonly describe: (error: unknown) => string = describeError,
  ) {}

  /** Have one made, and show it. */
  async run<Made>(make: () => Promise<Made>, show: (made: Made) => void): Promise<void> {
    if (this.isBusy) return;
    this.isBusy = true;
    this.problem = null;
    const unguard = router.guard(() => this.mayLeave(), { isSecret: true });
    try {
      show(await make());
      // What shows it guards it too, as soon as it is drawn.
      await tick();
    } catch (error) {
      const isUnheard = error instanceof Problem && error.status === 0;
      this.problem = isUnheard ? `${describeError(error)} ${this.noResponseHint}` : this.describe(error);
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
