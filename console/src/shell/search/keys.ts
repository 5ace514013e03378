/** The keys that open it, as they stand on the reader's keyboard. */
import { en } from "../../text/en";

const { keys, keysOfMac } = en.shell.find;

export const findKeys = /Mac|iPhone|iPad/.test(navigator.userAgent) ? keysOfMac : keys;
