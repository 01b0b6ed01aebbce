/**
 * A map that never changes, and of which a changed copy is cheap however large it is.
 *
 * A plain map that is shared by all copies lies under the few entries in which this one differs. A copy copies those
 * few; when as many have been copied as the plain map has, both layers become one again. So a change costs some
 * hundred steps at 10,000 entries, and a thousand at once hardly more than each of them, and whoever holds the map of
 * before still has it.
 */

const gone = Symbol("gone");
type Change<V> = V | typeof gone;

interface Layers<K, V> {
  readonly base: ReadonlyMap<K, V>;
  readonly changes: ReadonlyMap<K, Change<V>>;
  readonly size: number;
  /** Entries that were copied from one map of changes to the next since the layers were one. */
  readonly copied: number;
}

/** Entries come in the order of the base; keys that it lacks come last. */
export class SharedMap<K, V> implements ReadonlyMap<K, V> {
  readonly #layers: Layers<K, V>;

  private constructor(layers: Layers<K, V>) {
    this.#layers = layers;
  }

  /** Takes the map over: nobody may change it from now on. One that is shared already stays the same object. */
  static of<K, V>(map: ReadonlyMap<K, V>): SharedMap<K, V> {
    return map instanceof SharedMap
      ? (map as SharedMap<K, V>)
      : new SharedMap({ base: map, changes: new Map(), size: map.size, copied: 0 });
  }

  get size(): number {
    return this.#layers.size;
  }

  get(key: K): V | undefined {
    const { base, changes } = this.#layers;
    const change = changes.get(key);
    if (change === gone) return undefined;
    return change === undefined ? base.get(key) : change;
  }

  has(key: K): boolean {
    const { base, changes } = this.#layers;
    const change = changes.get(key);
    return change === undefined ? base.has(key) : change !== gone;
  }

  /** A draft of another map, which begins as this one. */
  edit(): MapDraft<K, V> {
    return new MapDraft(this.#layers, (layers) => (layers === this.#layers ? this : new SharedMap(layers)));
  }

  entries(): MapIterator<[K, V]> {
    const { base, changes } = this.#layers;
    return changes.size === 0 ? base.entries() : this.#merged();
  }

  keys(): MapIterator<K> {
    const { base, changes } = this.#layers;
    return changes.size === 0 ? base.keys() : this.#merged().map(([key]) => key);
  }

  values(): MapIterator<V> {
    const { base, changes } = this.#layers;
    return changes.size === 0 ? base.values() : this.#merged().map(([, value]) => value);
  }

  [Symbol.iterator](): MapIterator<[K, V]> {
    return this.entries();
  }

  forEach(use: (value: V, key: K, map: ReadonlyMap<K, V>) => void): void {
    for (const [key, value] of this.entries()) use(value, key, this);
  }

  *#merged(): Generator<[K, V], undefined> {
    const { base, changes } = this.#layers;
    for (const [key, value] of base) {
      const change = changes.get(key);
      if (change !== gone) yield [key, change === undefined ? value : change];
    }
    for (const [key, change] of changes) if (change !== gone && !base.has(key)) yield [key, change];
    return undefined;
  }
}

/** Changes on their way to become a `SharedMap`. No value may be undefined. */
export class MapDraft<K, V> {
  readonly #before: Layers<K, V>;
  readonly #make: (layers: Layers<K, V>) => SharedMap<K, V>;
  #changes: Map<K, Change<V>> | undefined;
  #size: number;

  constructor(before: Layers<K, V>, make: (layers: Layers<K, V>) => SharedMap<K, V>) {
    this.#before = before;
    this.#make = make;
    this.#size = before.size;
  }

  get size(): number {
    return this.#size;
  }

  get(key: K): V | undefined {
    const change = (this.#changes ?? this.#before.changes).get(key);
    if (change === gone) return undefined;
    return change === undefined ? this.#before.base.get(key) : change;
  }

  set(key: K, value: V): void {
    const before = this.get(key);
    if (before === value) return;
    if (before === undefined) this.#size++;
    this.#own().set(key, value);
  }

  /** Deletes the entry, and returns what it was. */
  delete(key: K): V | undefined {
    const value = this.get(key);
    if (value === undefined) return undefined;
    this.#size--;
    if (this.#before.base.has(key)) this.#own().set(key, gone);
    else this.#own().delete(key);
    return value;
  }

  /** The map with all changes; the one that the draft began with when there are none. The draft is used up. */
  finish(): SharedMap<K, V> {
    const { base } = this.#before;
    const changes = this.#changes;
    if (changes === undefined) return this.#make(this.#before);
    const size = this.#size;
    const copied = this.#before.copied + this.#before.changes.size;
    if (size === 0) return this.#make({ base: new Map(), changes: new Map(), size, copied: 0 });
    if (copied <= base.size) return this.#make({ base, changes, size, copied });
    // Nothing lies under them, so that none of them is a deletion.
    if (base.size === 0)
      return this.#make({ base: changes as Map<K, V>, changes: new Map(), size, copied: 0 });
    const merged = new Map(base);
    for (const [key, change] of changes) {
      if (change === gone) merged.delete(key);
      else merged.set(key, change);
    }
    return this.#make({ base: merged, changes: new Map(), size, copied: 0 });
  }

  #own(): Map<K, Change<V>> {
    this.#changes ??= new Map(this.#before.changes);
    return this.#changes;
  }
}
