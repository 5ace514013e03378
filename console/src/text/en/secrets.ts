/** What is shown once. */
export const secrets = {
  stored: "I have stored it",
} as const;
