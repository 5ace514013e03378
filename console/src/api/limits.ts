/** Length limits of the service, in characters. */
export const MAX_NAME_LENGTH = 128;
export const MAX_LABEL_LENGTH = 64;
export const MAX_NOTES_LENGTH = 10_000;
export const MAX_KEY_NAME_LENGTH = 64;
export const MIN_PASSWORD_LENGTH = 10;
