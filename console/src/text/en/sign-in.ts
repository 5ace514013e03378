/** Texts of the sign-in page. */
import { isolateBidi } from "../bidi";

export const signIn = {
  title: "Sign in",
  lead: "to manage your devices",
  username: "User name",
  password: "Password",
  submit: "Sign in",
  busy: "Signing in…",
  capsLock: "Caps Lock is on.",
  wrong: "Wrong user name or password. Please try again.",
  wait: (time: string) => `Too many attempts. Try again ${time}.`,
  unreachable: "The service cannot be reached. This page keeps trying.",
  failed: "The service could not be reached, so your password was not checked. Please try again.",
  sessionEnded: "Your session has ended. Please sign in again.",
  preserved: (name: string) => `What you typed is kept for ${isolateBidi(name)}. If another user signs in, it is discarded.`,
  firstPassword: "The password of admin was printed when the service first started.",
} as const;
