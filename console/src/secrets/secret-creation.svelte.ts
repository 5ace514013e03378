/** Creation of a secret that is shown once. From the request until it is shown, a guard prevents leaving. */
import { tick } from "svelte";

import { Problem, describeError } from "../api/client";
import { router } from "../router.svelte";

export class SecretCreation {
  isBusy = $state(false);
  /** Whether the user tried to leave meanwhile. */
  isLeaving = $state(false);
  problem = $state<string | null>(null);

  /** `noResponseHint` says what to do if it is unknown whether a secret was created; `describe` returns the text for
   * other errors. */
  constructor(
    readonly noResponseHint: string,
    readonly describe: (error: unknown) => string = describeError,
  ) {}

  /** Create a secret and show it. */
  async run<Made>(make: () => Promise<Made>, show: (made: Made) => void): Promise<void> {
    if (this.isBusy) return;
    this.isBusy = true;
    this.problem = null;
    const unguard = router.guard(() => this.tryLeave(), { isSecret: true });
    try {
      show(await make());
      // The dialog has its own guard as soon as it is rendered.
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

  /** Return whether the user can leave now. If not, show the reason. */
  tryLeave(): boolean {
    this.isLeaving = this.isBusy;
    return !this.isBusy;
  }
}
