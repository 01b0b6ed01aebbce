/**
 * The status that a node reports, as the bytes it sent: checked, and with our time in it.
 *
 * What is stored goes to every watcher, so it must be a message that the strictest reader takes (Go refuses a whole
 * event for one string that is no UTF-8). Fields that nobody here knows are kept byte for byte: a newer node's
 * status must come back from an older Curator as it went in.
 */
import protobuf from "protobufjs/minimal.js";
import { Timestamp } from "../gen/google/protobuf/timestamp.ts";
import { messageOf } from "../errors.ts";
import type { Unreadable } from "../core/prefix.ts";

export interface ReportedStatus {
  /** As received; "" when absent. */
  readonly externalAddress: string;
  /** All of the status but its time, which is the Curator's to set. */
  readonly timeless: Uint8Array;
}

/**
 * Longest status that is taken. One of a Metropolis node has some 100 bytes; without a limit a single node could
 * make an event that no agent takes.
 */
const maxStatusBytes = 16 * 1024;

const tag = { externalAddress: 10, timestamp: 18, runningCurator: 26, version: 34 } as const;

/** Reads a serialized NodeStatus. */
export function decodeStatus(bytes: Uint8Array): ReportedStatus | Unreadable {
  if (bytes.length > maxStatusBytes) {
    return { reason: `has ${bytes.length} bytes, expected at most ${maxStatusBytes}` };
  }
  const utf8 = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });
  const kept: Uint8Array[] = [];
  let externalAddress = "";
  try {
    const reader = protobuf.Reader.create(bytes);
    while (reader.pos < reader.len) {
      const start = reader.pos;
      const found = reader.uint32();
      switch (found) {
        case tag.externalAddress:
          externalAddress = utf8.decode(reader.bytes());
          break;
        case tag.timestamp:
          reader.skipType(2);
          continue;
        case tag.runningCurator:
        case tag.version:
          requireMessage(reader.bytes());
          break;
        default:
          skipField(reader, found);
      }
      kept.push(bytes.subarray(start, reader.pos));
    }
  } catch (error) {
    return { reason: `is no message: ${messageOf(error)}` };
  }
  return { externalAddress, timeless: Buffer.concat(kept) };
}

/** The status as it is stored and sent: with the time of the report. */
export function encodeStatus(timeless: Uint8Array, reportedAtMs: number): Uint8Array {
  const seconds = Math.floor(reportedAtMs / 1000);
  const time = Timestamp.encode({
    seconds: BigInt(seconds),
    nanos: (reportedAtMs - seconds * 1000) * 1_000_000,
  });
  const field = protobuf.Writer.create().uint32(tag.timestamp).bytes(time.finish()).finish();
  return Buffer.concat([timeless, field]);
}

function requireMessage(bytes: Uint8Array): void {
  const reader = protobuf.Reader.create(bytes);
  while (reader.pos < reader.len) skipField(reader, reader.uint32());
}

function skipField(reader: protobuf.Reader, found: number): void {
  if (found >>> 3 === 0) throw new Error(`a field has the number 0 at byte ${reader.pos}`);
  reader.skipType(found & 7);
}
