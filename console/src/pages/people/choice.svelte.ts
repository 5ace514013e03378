/** Which password somebody is to have: one that is made here, or one that is typed twice. */
import { MIN_PASSWORD_LENGTH } from "../../api/limits";
import { generated } from "./generated";

export class PasswordChoice {
  way = $state<"made" | "typed">("made");
  typed = $state("");
  again = $state("");

  readonly length = $derived([...this.typed].length);
  readonly isShort = $derived(this.length < MIN_PASSWORD_LENGTH);
  readonly isGood = $derived(this.way === "made" || (!this.isShort && this.typed === this.again));

  /** The password, and whether somebody has to be shown it. */
  take(): { password: string; isMade: boolean } {
    const isMade = this.way === "made";
    return { password: isMade ? generated() : this.typed, isMade };
  }
}
