// Tabs by mouse and by arrow keys, as the ARIA practices describe them; the choice is part of the address.

export function tabs(list) {
  const all = [...list.querySelectorAll('[role="tab"]')];

  function select(tab, focus) {
    for (const each of all) {
      const chosen = each === tab;
      each.setAttribute("aria-selected", chosen);
      each.tabIndex = chosen ? 0 : -1;
      document.getElementById(each.getAttribute("aria-controls")).hidden = !chosen;
    }
    if (focus) tab.focus();
    history.replaceState(null, "", `#${tab.getAttribute("aria-controls")}`);
    window.dispatchEvent(new Event("resize"));
  }

  list.addEventListener("click", (event) => {
    const tab = event.target.closest('[role="tab"]');
    if (tab) select(tab, false);
  });
  list.addEventListener("keydown", (event) => {
    const at = all.indexOf(document.activeElement);
    const to = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: all.length - 1 }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    select(all[(to + all.length) % all.length], true);
  });
  const named = all.find((tab) => `#${tab.getAttribute("aria-controls")}` === location.hash);
  if (named) select(named, false);
}
