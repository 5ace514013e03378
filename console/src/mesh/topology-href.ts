/** Return the address of the topology page of a gateway, with a selected device. Both are MACs. */
export function buildTopologyHref(gateway: string, device?: string): string {
  const query = new URLSearchParams({ Gateway: gateway, ...(device !== undefined && { Device: device }) });
  return `/topology?${query.toString()}`;
}
