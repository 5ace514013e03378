/** Descriptions are written with a little markup: words of machines in backquotes, and words with stress. */
export interface Span {
  readonly kind: "text" | "code" | "strong" | "stress";
  readonly text: string;
}

const MARKED = /`(?<code>[^`]+)`|\*\*(?<strong>[^*]+)\*\*|\*(?<stress>[^*]+)\*/g;

export function paragraphsOf(text: string): readonly string[] {
  return text.trim().split(/\n\s*\n/);
}

export function spansOf(text: string): readonly Span[] {
  const found: Span[] = [];
  let end = 0;
  for (const match of text.matchAll(MARKED)) {
    if (match.index > end) found.push({ kind: "text", text: text.slice(end, match.index) });
    const { code, strong, stress = "" } = match.groups ?? {};
    if (code !== undefined) found.push({ kind: "code", text: code });
    else if (strong !== undefined) found.push({ kind: "strong", text: strong });
    else found.push({ kind: "stress", text: stress });
    end = match.index + match[0].length;
  }
  if (end < text.length) found.push({ kind: "text", text: text.slice(end) });
  return found;
}
