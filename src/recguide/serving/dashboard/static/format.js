// Numbers and small pieces of the page.

const formats = new Map();

function format(digits) {
  if (!formats.has(digits)) {
    formats.set(digits, new Intl.NumberFormat("en", { maximumFractionDigits: digits, minimumFractionDigits: digits }));
  }
  return formats.get(digits);
}

/** A number with as many digits as are worth reading; a dash for none. */
export function number(value, digits) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  if (digits === undefined) digits = Math.abs(value) >= 100 ? 0 : Math.abs(value) >= 10 ? 1 : 2;
  return format(digits).format(value);
}

/** A share as a percentage. */
export function percent(value) {
  return value === null || value === undefined ? "–" : `${number(100 * value, 0)} %`;
}

export function mean(values) {
  const known = values.filter((value) => value !== null && value !== undefined);
  return known.length ? known.reduce((sum, value) => sum + value, 0) / known.length : null;
}

/** Seconds since the epoch as a time of day. */
export function clock(seconds) {
  return new Date(1000 * seconds).toLocaleTimeString("en-GB");
}

/** An element with attributes and children; text never becomes markup. */
export function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key === "class") made.className = value;
    else made.setAttribute(key, value);
  }
  made.append(...children);
  return made;
}

/** The current colour behind a CSS custom property. */
export function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}
