/** Texts of the dialog that shows a secret once. */
export const secrets = {
  stored: "I have stored it",
} as const;
