/** Changed copies of address queries. */

/** Return a query in which a parameter has exactly these values; null or empty removes it. */
export function withParam(
  query: URLSearchParams,
  name: string,
  value: string | readonly string[] | null,
): URLSearchParams {
  const next = withoutParams(query, name);
  for (const each of [value ?? []].flat()) if (each !== "") next.append(name, each);
  return next;
}

export function withoutParams(query: URLSearchParams, ...names: readonly string[]): URLSearchParams {
  const next = new URLSearchParams(query);
  for (const name of names) next.delete(name);
  return next;
}
