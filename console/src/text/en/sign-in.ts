/** The page that asks who one is. */
import { isolateBidi } from "../bidi";

export const signIn = {
  title: "Sign in",
  lead: "to look after your devices",
  username: "User name",
  password: "Password",
  submit: "Sign in",
  busy: "Signing in…",
  capsLock: "Caps Lock is on.",
  wrong: "That name and password do not belong together. Please try again.",
  wait: (time: string) => `Too many attempts. Try again ${time}.`,
  unreachable: "The service cannot be reached. This page goes on trying.",
  failed: "The service could not be reached. Nothing was checked: please try again.",
  sessionEnded: "Your session has ended. Please sign in again.",
  preserved: (name: string) => `What was typed is kept for ${isolateBidi(name)}. Whoever else signs in begins anew.`,
  firstPassword: "The password of admin was printed when the service first started.",
} as const;
