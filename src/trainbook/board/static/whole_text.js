// What does not fit into its place is cut there: the whole of it is the tooltip.

const MOST_ABOVE = 4; // elements around the one under the pointer

export function tellWholeTexts() {
  document.addEventListener("pointerover", ({ target }) => {
    for (let at = target, level = 0; at instanceof HTMLElement && level < MOST_ABOVE; at = at.parentElement, level++)
      tellWholeText(at);
  });
}

function tellWholeText(element) {
  if (element.title && !element.dataset.isWhole) return; // a tooltip of its own
  const isCut = cuts(element);
  if (isCut) element.title = element.innerText.replace(/\s+/g, " ").trim();
  else if (element.dataset.isWhole) element.removeAttribute("title");
  if (isCut) element.dataset.isWhole = "yes";
  else delete element.dataset.isWhole;
}

function cuts(element) {
  if (!["hidden", "clip"].includes(getComputedStyle(element).overflowX)) return false;
  return element.scrollWidth > element.clientWidth + 1 || element.scrollHeight > element.clientHeight + 4;
}
