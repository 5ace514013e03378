/** Theme: that of the system until the user chooses one. `theme.js` sets it before the first paint. */

import { browserStorage } from "../storage";

export type Theme = "light" | "dark";

const STORAGE_KEY = "meshfleet.theme";

class Appearance {
  theme = $state<Theme>(document.documentElement.dataset["theme"] === "dark" ? "dark" : "light");

  constructor() {
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", (event) => {
      if (browserStorage.read(STORAGE_KEY) === null) this.#show(event.matches ? "dark" : "light");
    });
  }

  switch(): void {
    const other = this.theme === "dark" ? "light" : "dark";
    browserStorage.write(STORAGE_KEY, other);
    this.#show(other);
  }

  #show(theme: Theme): void {
    this.theme = theme;
    document.documentElement.dataset["theme"] = theme;
  }
}

export const appearance = new Appearance();
