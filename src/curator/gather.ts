/**
 * What comes of a stream in one turn of the event loop, all at once.
 *
 * A thousand changes are a thousand messages, and each step that awaits them one by one costs its promises a thousand
 * times. Guarantees the order, that nothing is lost (what came before a failure is yielded before it is thrown), and that no
 * more than `limitBytes` and one message are held that nobody has taken: flow control then holds whoever sends.
 */
import { giveWay } from "../async.ts";

/**
 * Yields the messages of `source` in the portions in which they came. Whoever ends it early must end `source` as well,
 * which may be waiting for its next message. Throws what `source` throws.
 */
export async function* gather(
  source: AsyncIterable<Uint8Array>,
  limitBytes: number,
): AsyncGenerator<readonly Uint8Array[], void> {
  const held = { messages: [] as Uint8Array[], bytes: 0, isWhole: false, isUnwanted: false };
  let arrival = Promise.withResolvers<void>();
  let room = Promise.withResolvers<void>();
  const read = async (): Promise<void> => {
    for await (const message of source) {
      held.messages.push(message);
      held.bytes += message.length;
      arrival.resolve();
      if (held.bytes >= limitBytes) await room.promise;
      if (held.isUnwanted) return;
    }
  };
  const reading = read().finally(() => {
    held.isWhole = true;
    arrival.resolve();
  });
  // Told when all that came before it has been taken; of a stream that was left nobody wants to know.
  reading.catch(() => {});
  try {
    for (;;) {
      await arrival.promise;
      if (held.messages.length === 0) return await reading;
      await giveWay();
      const portion = held.messages;
      held.messages = [];
      held.bytes = 0;
      if (!held.isWhole) arrival = Promise.withResolvers();
      room.resolve();
      room = Promise.withResolvers();
      yield portion;
    }
  } finally {
    held.isUnwanted = true;
    room.resolve();
  }
}
