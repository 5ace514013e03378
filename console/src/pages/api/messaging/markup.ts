/** Parser of the small markup in descriptions: code in backquotes, strong and emphasized text. */
/** Piece of text with one style. */
export interface Span {
  readonly kind: "text" | "code" | "strong" | "stress";
  readonly text: string;
}

const MARKUP = /`(?<code>[^`]+)`|\*\*(?<strong>[^*]+)\*\*|\*(?<stress>[^*]+)\*/g;

export function splitParagraphs(text: string): readonly string[] {
  return text.trim().split(/\n\s*\n/);
}

export function parseSpans(text: string): readonly Span[] {
  const spans: Span[] = [];
  let end = 0;
  for (const match of text.matchAll(MARKUP)) {
    if (match.index > end) spans.push({ kind: "text", text: text.slice(end, match.index) });
    const { code, strong, stress = "" } = match.groups ?? {};
    if (code !== undefined) spans.push({ kind: "code", text: code });
    else if (strong !== undefined) spans.push({ kind: "strong", text: strong });
    else spans.push({ kind: "stress", text: stress });
    end = match.index + match[0].length;
  }
  if (end < text.length) spans.push({ kind: "text", text: text.slice(end) });
  return spans;
}
