/** The keys that open it, as they stand on the reader's keyboard. */
import { en } from "../../text/en";

const { keys, macKeys: keysOfMac } = en.shell.search;

export const findKeys = /Mac|iPhone|iPad/.test(navigator.userAgent) ? keysOfMac : keys;
