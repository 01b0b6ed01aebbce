/**
 * The same message in another order: protobuf allows the fields of a message in any.
 */

/** A copy in random order. */
export function shuffled<T>(values: readonly T[]): T[] {
  return values
    .map((value) => ({ value, at: Math.random() }))
    .toSorted((a, b) => a.at - b.at)
    .map(({ value }) => value);
}

/** The message with its outermost fields in random order, except that those of one number keep theirs. */
export function shuffleMessage(bytes: Uint8Array): Uint8Array {
  const fields = fieldsOf(bytes);
  const order = shuffled([...fields.keys()]);
  return new Uint8Array(order.flatMap((number) => (fields.get(number) ?? []).flatMap((field) => [...field])));
}

/** Every field with its tag, by number. */
function fieldsOf(bytes: Uint8Array): ReadonlyMap<number, readonly Uint8Array[]> {
  const fields = new Map<number, Uint8Array[]>();
  for (let at = 0; at < bytes.length;) {
    const tag = varint(bytes, at);
    const value = varint(bytes, tag.end);
    const wireType = tag.value & 7;
    if (wireType !== 0 && wireType !== 2) throw new Error(`Cannot reorder a field of wire type ${wireType}`);
    const end = wireType === 0 ? value.end : value.end + value.value;
    const number = tag.value >> 3;
    fields.set(number, [...(fields.get(number) ?? []), bytes.subarray(at, end)]);
    at = end;
  }
  return fields;
}

function varint(bytes: Uint8Array, from: number): { readonly value: number; readonly end: number } {
  let value = 0;
  for (let at = from; at < bytes.length; at++) {
    const byte = bytes[at] ?? 0;
    value += (byte & 127) * 2 ** (7 * (at - from));
    if (byte < 128) return { value, end: at + 1 };
  }
  throw new Error("Cannot reorder a message: it is cut off");
}
