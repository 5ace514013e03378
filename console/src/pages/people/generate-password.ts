/** Generator of random passwords. */

/** Characters that cannot be confused when read out or typed. */
const CHARACTERS = "abcdefghjkmnpqrstuvwxyz23456789";
const GROUPS = 4;
const GROUP_LENGTH = 5;
/** Random bytes from here on are discarded: they would make some characters more likely. */
const BYTE_LIMIT = 256 - (256 % CHARACTERS.length);

/** Return twenty random characters, about 99 bits, in groups that can be read aloud. */
export function generatePassword(): string {
  return Array.from({ length: GROUPS }, () => Array.from({ length: GROUP_LENGTH }, pickCharacter).join("")).join("-");
}

function pickCharacter(): string {
  for (;;) {
    const [byte = BYTE_LIMIT] = crypto.getRandomValues(new Uint8Array(1));
    if (byte < BYTE_LIMIT) return CHARACTERS.charAt(byte % CHARACTERS.length);
  }
}
