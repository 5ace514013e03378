/** A password that nobody thought of. */

/** None that one takes for another when it is read out or typed. */
const SIGNS = "abcdefghjkmnpqrstuvwxyz23456789";
const GROUPS = 4;
const IN_GROUP = 5;
/** Beyond this some signs would come more often than others. */
const FAIR = 256 - (256 % SIGNS.length);

/** Twenty random signs, about 99 bits, in groups that can be read aloud. */
export function generated(): string {
  return Array.from({ length: GROUPS }, () => Array.from({ length: IN_GROUP }, sign).join("")).join("-");
}

function sign(): string {
  for (;;) {
    const [byte = FAIR] = crypto.getRandomValues(new Uint8Array(1));
    if (byte < FAIR) return SIGNS.charAt(byte % SIGNS.length);
  }
}
