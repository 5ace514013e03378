/** How many characters the service takes at most. */
export const LONGEST_NAME = 128;
export const LONGEST_LABEL = 64;
