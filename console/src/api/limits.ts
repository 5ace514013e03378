/** Limits of the service: items of a page, and lengths of texts in characters. */
export const MAX_PAGE_SIZE = 1000;
export const MAX_NAME_LENGTH = 128;
export const MAX_LABEL_LENGTH = 64;
export const MAX_NOTES_LENGTH = 10_000;
export const MAX_KEY_NAME_LENGTH = 64;
export const MIN_PASSWORD_LENGTH = 10;
