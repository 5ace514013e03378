// Runs before the first paint, so that a dark theme never flashes white.
(() => {
  let wanted = null;
  try {
    wanted = localStorage.getItem("meshfleet.theme");
  } catch {
    // Storage is disabled in this browser.
  }
  const dark = wanted ? wanted === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  document.documentElement.dataset.theme = dark ? "dark" : "light";
})();
