// Runs before the first paint, so that nobody sees a white page at night.
(() => {
  let wanted = null;
  try {
    wanted = localStorage.getItem("meshfleet.theme");
  } catch {
    // This browser keeps nothing for us.
  }
  const dark = wanted ? wanted === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  document.documentElement.dataset.theme = dark ? "dark" : "light";
})();
