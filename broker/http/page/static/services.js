// Which services a broker has, told from its listeners.

/** Whether it is known that there is no listener of this scheme. */
export function lacks(overview, scheme) {
  const listeners = overview.data?.listeners;
  return listeners !== undefined && !listeners.some((each) => String(each.scheme).split("+")[0] === scheme);
}
