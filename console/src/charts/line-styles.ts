/** How lines are told apart: by colour, and by their dashes, since not everybody sees colours. */
export const LINE_COLORS = ["series-1", "series-2", "series-3", "series-4"] as const;
export const LINE_DASHES: readonly (readonly number[])[] = [[], [7, 4], [2, 3], [9, 3, 2, 3]];
