/** Keyboard shortcut of the search, as printed on the keyboard of the user. */
import { en } from "../../text/en";

const { keys, macKeys: keysOfMac } = en.shell.search;

export const searchKeys = /Mac|iPhone|iPad/.test(navigator.userAgent) ? keysOfMac : keys;
