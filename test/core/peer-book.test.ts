/** What this program has set of peers, after applies that succeed, fail or break off. */
import { expect, test } from "bun:test";
import { planHost } from "../../src/core/host-plan.ts";
import type { SeenHost, Step, WantedHost } from "../../src/core/host-state.ts";
import { PeerBook } from "../../src/core/peer-book.ts";
import { peerOf, publicKeyOf, wantedHost } from "../fakes/wanted.ts";

const nothing: SeenHost = { routes: [], loopback: [], addresses: new Set() };
const mesh = (...peers: Parameters<typeof peerOf>[]): WantedHost =>
  wantedHost({ peers: peers.map((words) => peerOf(...words)) });

/** An apply: what was wanted, and of which kind the steps were that could not be done. */
type Apply = readonly [WantedHost, ...left: readonly Step["kind"][]];

/** The steps of these kinds that bring the empty host to what is wanted. */
function stepsOf(wanted: WantedHost, kinds: readonly Step["kind"][]): readonly Step[] {
  const { steps } = planHost(wanted, nothing, {
    addedLoopback: new Set(),
    ourKeys: new Set(),
    formerClusterNets: [],
    formerPeers: new Set(),
    endpoints: {
      starting: true,
      announced: () => undefined,
      tried: new Map(),
      quietMs: new Map(),
      nowSeconds: 0,
    },
  });
  return steps.filter(({ kind }) => kinds.includes(kind));
}

/** What the book says of the peers of nodes n2 and n3. */
function said(applies: readonly Apply[]): object {
  const book = new PeerBook();
  for (const [wanted, ...left] of applies) book.note(wanted, nothing, stepsOf(wanted, left));
  const { starting, announced, tried } = book.endpoints();
  const former = book.formerPeers();
  const numbers = [2, 3];
  return {
    starting,
    former: numbers.filter((number) => former.has(publicKeyOf(number))),
    announced: numbers.map((number) => announced(peerOf(number))),
    tried: numbers.map((number) => [...(tried.get(publicKeyOf(number)) ?? [])]),
  };
}

test.each<{ name: string; applies: readonly Apply[]; want: object }>([
  {
    name: "nothing before the first apply",
    applies: [],
    want: { starting: true, former: [], announced: [undefined, undefined], tried: [[], []] },
  },
  {
    name: "what was wanted when all was done",
    applies: [[mesh([2], [3])]],
    want: {
      starting: false,
      former: [2, 3],
      announced: ["192.0.2.2:7838", "192.0.2.3:7838"],
      tried: [[], []],
    },
  },
  {
    name: "of a peer that is wanted no more nothing, once that is done",
    applies: [[mesh([2], [3])], [mesh([3])]],
    want: { starting: false, former: [3], announced: [undefined, "192.0.2.3:7838"], tried: [[], []] },
  },
  {
    name: "endpoints that perhaps were set, beside those that certainly were",
    applies: [[mesh([2])], [mesh([2, { address: "192.0.2.22" }], [3]), "set-peers"]],
    want: {
      starting: false,
      former: [2, 3],
      announced: ["192.0.2.2:7838", undefined],
      tried: [["192.0.2.22:7838"], ["192.0.2.3:7838"]],
    },
  },
  {
    name: "the last four endpoints tried of a peer, and none of one that is wanted no more",
    applies: [
      [mesh([2], [3]), "set-peers"],
      ...[10, 11, 12, 13].map((last): Apply => [mesh([2, { address: `192.0.2.${last}` }]), "set-peers"]),
    ],
    want: {
      starting: true,
      former: [2],
      announced: [undefined, undefined],
      tried: [[10, 11, 12, 13].map((last) => `192.0.2.${last}:7838`), []],
    },
  },
  {
    name: "the endpoints as set when it is something else that failed",
    applies: [[mesh([2]), "set-route"]],
    want: { starting: false, former: [2], announced: ["192.0.2.2:7838", undefined], tried: [[], []] },
  },
  {
    name: "an endpoint by its key, when another node has it now",
    applies: [[mesh([9, { key: 2, address: "192.0.2.9" }])]],
    want: { starting: false, former: [2], announced: ["192.0.2.9:7838", undefined], tried: [[], []] },
  },
])("PeerBook knows $name", ({ applies, want }) => {
  expect(said(applies)).toEqual(want);
});
