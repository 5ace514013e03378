/** Choice of a password: generated, or typed twice. */
import { MIN_PASSWORD_LENGTH } from "../../api/limits";
import { generatePassword } from "./generate-password";

export class PasswordChoice {
  method = $state<"made" | "typed">("made");
  typed = $state("");
  repeated = $state("");

  readonly length = $derived([...this.typed].length);
  readonly isShort = $derived(this.length < MIN_PASSWORD_LENGTH);
  readonly isValid = $derived(this.method === "made" || (!this.isShort && this.typed === this.repeated));

  /** Return the password, and whether it was generated and must be shown to the admin. */
  resolve(): { password: string; isGenerated: boolean } {
    const isGenerated = this.method === "made";
    return { password: isGenerated ? generatePassword() : this.typed, isGenerated };
  }
}
