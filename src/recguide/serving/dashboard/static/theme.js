// Runs before the page is painted, so that a chosen colour scheme does not flash.
(() => {
  const KEPT = "recguide-theme";
  const system = matchMedia("(prefers-color-scheme: dark)");
  const chosen = () => localStorage.getItem(KEPT);
  const apply = () => {
    document.documentElement.dataset.theme = chosen() ?? (system.matches ? "dark" : "light");
    document.dispatchEvent(new Event("themechange"));
  };
  system.addEventListener("change", apply);
  apply();
  document.addEventListener("DOMContentLoaded", () => {
    document.getElementById("theme").addEventListener("click", () => {
      localStorage.setItem(KEPT, document.documentElement.dataset.theme === "dark" ? "light" : "dark");
      apply();
    });
  });
})();
