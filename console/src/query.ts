/** Queries of addresses that say something else. The one that is given stays as it is. */

/** A name has this value or these and no others; null and nothing: none. */
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
