/** What is shown once. */
export const once = {
  kept: "I have stored it",
} as const;
