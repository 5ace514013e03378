/** Coordinates and lengths in meters, as users type and read them. */
const decimeters = new Intl.NumberFormat("en", { maximumFractionDigits: 1 });
const centimeters = new Intl.NumberFormat("en", { maximumFractionDigits: 2, useGrouping: false });
const NUMBER = /^[+-]?(\d+([.,]\d*)?|[.,]\d+)$/;

/** Parse a number with a decimal point or comma. Return null if the text is not one. */
export function parseMeters(text: string): number | null {
  const typed = text.trim();
  return NUMBER.test(typed) ? Number(typed.replace(",", ".")) : null;
}

/** Format a coordinate or distance for reading. */
export function formatMeters(value: number): string {
  return decimeters.format(Object.is(Math.round(value * 10), -0) ? 0 : value);
}

/** Format a coordinate for a text field, to the centimeter. */
export function formatField(value: number): string {
  return centimeters.format(Object.is(Math.round(value * 100), -0) ? 0 : value);
}
