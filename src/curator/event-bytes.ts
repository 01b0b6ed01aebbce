/**
 * The service `Curator` with the events of Watch as bytes.
 *
 * What comes or goes as bytes is encoded once for many watchers, and decoded when it suits the reader instead of one by
 * one inside gRPC. Everything else of the service is as in the generated code.
 */
import { CuratorDefinition } from "../gen/curator.ts";

const eventBytes = {
  encode: (event: Uint8Array) => ({ finish: () => event }),
  decode: (event: Uint8Array) => event,
};

/** `Curator`; a message of Watch is a serialized WatchEvent. */
export const byteCuratorDefinition = {
  ...CuratorDefinition,
  methods: {
    ...CuratorDefinition.methods,
    watch: { ...CuratorDefinition.methods.watch, responseType: eventBytes },
  },
};
