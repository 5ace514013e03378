/** The part of a long list that can be seen: all rows are equally high, and only those near it are drawn. */

/** Pixels, as the style sheet has them. */
export const ROW = 48;
export const HEAD = 40;

/** Rows beyond each edge, so that scrolling shows no holes. */
const BEYOND = 6;
/** So many rows before the end the next page is wanted. */
const NEAR = 30;

export interface Range {
  readonly first: number;
  /** Behind the last one. */
  readonly end: number;
}

export class View {
  top = $state(0);
  height = $state(0);
  width = $state(0);
  element: HTMLElement | null = null;

  /** The rows that can be seen, of so many. */
  seen(length: number): Range {
    const first = Math.floor(this.top / ROW);
    const end = Math.ceil((this.top + Math.max(this.height - HEAD, 0)) / ROW);
    return { first: Math.min(first, length), end: Math.min(end, length) };
  }

  /** The rows to draw, of so many. */
  drawn(length: number): Range {
    const { first, end } = this.seen(length);
    return { first: Math.max(first - BEYOND, 0), end: Math.min(end + BEYOND, length) };
  }

  isNearEnd(length: number): boolean {
    return this.height > 0 && this.seen(length).end > length - NEAR;
  }

  scroll(top: number): void {
    if (this.element === null) return;
    this.element.scrollTop = top;
    this.top = this.element.scrollTop;
  }

  /** Scroll just as far as a row needs to be seen. */
  reveal(index: number): void {
    const above = index * ROW;
    const below = above + ROW - (this.height - HEAD);
    if (above < this.top) this.scroll(above);
    else if (below > this.top) this.scroll(below);
  }
}
