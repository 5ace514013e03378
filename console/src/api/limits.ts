/** How many characters the service takes. */
export const LONGEST_NAME = 128;
export const LONGEST_LABEL = 64;
export const LONGEST_NOTES = 10_000;
export const LONGEST_KEY_NAME = 64;
export const SHORTEST_PASSWORD = 10;
