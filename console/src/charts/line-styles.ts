/** Colors and dashes of lines; dashes because not all users can distinguish colors. */
export const LINE_COLORS = ["series-1", "series-2", "series-3", "series-4"] as const;
export const LINE_DASHES: readonly (readonly number[])[] = [[], [7, 4], [2, 3], [9, 3, 2, 3]];
