/** Viewport of a long list: all rows have the same height, and only those near it are rendered. */

/** Heights in pixels, as in the style sheet. */
export const ROW_HEIGHT = 48;
export const HEAD_HEIGHT = 40;

/** Rows rendered beyond each edge, so that scrolling shows no gaps. */
const OVERSCAN = 6;
/** Number of rows before the end at which the next page is loaded. */
const PREFETCH_DISTANCE = 30;

export interface Range {
  readonly first: number;
  /** Index after the last row. */
  readonly end: number;
}

/** Scroll state of the list, in pixels. */
export class View {
  top = $state(0);
  height = $state(0);
  width = $state(0);
  element: HTMLElement | null = null;

  /** Return the visible rows of a list of this length. */
  visibleRange(length: number): Range {
    const first = Math.floor(this.top / ROW_HEIGHT);
    const end = Math.ceil((this.top + Math.max(this.height - HEAD_HEIGHT, 0)) / ROW_HEIGHT);
    return { first: Math.min(first, length), end: Math.min(end, length) };
  }

  /** Return the rows to render of a list of this length. */
  renderedRange(length: number): Range {
    const { first, end } = this.visibleRange(length);
    return { first: Math.max(first - OVERSCAN, 0), end: Math.min(end + OVERSCAN, length) };
  }

  isNearEnd(length: number): boolean {
    return this.height > 0 && this.visibleRange(length).end > length - PREFETCH_DISTANCE;
  }

  scroll(top: number): void {
    if (this.element === null) return;
    this.element.scrollTop = top;
    this.top = this.element.scrollTop;
  }

  /** Scroll as little as needed to make a row visible. */
  reveal(index: number): void {
    const above = index * ROW_HEIGHT;
    const below = above + ROW_HEIGHT - (this.height - HEAD_HEIGHT);
    if (above < this.top) this.scroll(above);
    else if (below > this.top) this.scroll(below);
  }
}
