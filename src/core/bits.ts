/**
 * The bits of IP addresses as four words, and what is asked of them.
 *
 * Words and not a bigint: a mesh of 10,000 nodes makes and compares tens of thousands of addresses at every start, and
 * arithmetic on bigints, each of which is an object in memory, takes many times as long. The words are signed, as
 * the operators for bits give them.
 */

/** 128 bits from the left, 32 a word; an IPv4 address is in `a` alone and the others are 0. */
export interface Bits {
  readonly a: number;
  readonly b: number;
  readonly c: number;
  readonly d: number;
}

/** How many bits from the left both have alike. */
export function commonBits(x: Bits, y: Bits): number {
  if (x.a !== y.a) return Math.clz32(x.a ^ y.a);
  if (x.b !== y.b) return 32 + Math.clz32(x.b ^ y.b);
  if (x.c !== y.c) return 64 + Math.clz32(x.c ^ y.c);
  return 96 + Math.clz32(x.d ^ y.d);
}

/** As numbers: negative when the first is less. */
export function compareBits(x: Bits, y: Bits): number {
  if (x.a !== y.a) return (x.a >>> 0) - (y.a >>> 0);
  if (x.b !== y.b) return (x.b >>> 0) - (y.b >>> 0);
  if (x.c !== y.c) return (x.c >>> 0) - (y.c >>> 0);
  return (x.d >>> 0) - (y.d >>> 0);
}

/** Whether any bit behind the first `length` is 1. */
export function hasBitsBehind({ a, b, c, d }: Bits, length: number): boolean {
  return (
    maskWord(a, length) !== a ||
    maskWord(b, length - 32) !== b ||
    maskWord(c, length - 64) !== c ||
    maskWord(d, length - 96) !== d
  );
}

/** The first `length` bits, and 0 behind them. */
export function maskBits({ a, b, c, d }: Bits, length: number): Bits {
  return {
    a: maskWord(a, length),
    b: maskWord(b, length - 32),
    c: maskWord(c, length - 64),
    d: maskWord(d, length - 96),
  };
}

function maskWord(word: number, length: number): number {
  if (length >= 32) return word;
  return length <= 0 ? 0 : word & (-1 << (32 - length));
}

/** Whether the bit with this index, from the left and from 0, is 1. */
export function isSet({ a, b, c, d }: Bits, index: number): boolean {
  const word = index < 32 ? a : index < 64 ? b : index < 96 ? c : d;
  return ((word << (index & 31)) & 0x8000_0000) !== 0;
}
